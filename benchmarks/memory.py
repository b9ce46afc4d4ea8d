"""Peak memory of a piece of work, in a process of its own so that nothing else counts."""

import multiprocessing


def peak_megabytes(work, *arguments):
    """Memory that ``work(*arguments)`` needs beyond what it starts with; Linux only.

    ``work`` prepares its input and returns a function, which is what is measured.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure, (work, arguments))


def _measure(work, arguments):
    step = work(*arguments)
    before = _status("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # resets the peak
    step()
    return (_status("VmHWM") - before) / 1024


def _status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key))
