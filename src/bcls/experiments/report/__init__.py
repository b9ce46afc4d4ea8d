"""Reports: tables, tests, curves and verdicts from what sweeps left, beside the paper's own figures."""
