"""What an installation is and whether it works, as a text for a bug report."""

from bcls.doctor.report import Line, Report, Section
from bcls.doctor.run import examine

__all__ = ["Line", "Report", "Section", "examine"]
