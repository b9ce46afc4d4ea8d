"""Counts and times of requests, in the text format of Prometheus."""

import threading
from bisect import bisect_left
from collections import Counter

#: Upper ends of the histogram, in seconds.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """What happened since the start; threads may share it.

    Example:
        >>> metrics = Metrics()
        >>> metrics.done("/api/search", 200, 0.02)
        >>> 'bcls_requests_total{route="/api/search",status="200"} 1' in metrics.text({})
        True
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()

    def done(self, route: str, status: int, seconds: float) -> None:
        """Note a request that was answered.

        Args:
            route: The pattern of its address, not the address: there are few of them.
            status: Of the answer.
            seconds: How long it took.
        """
        with self._lock:
            self._requests[route, status] += 1
            counts = self._buckets.setdefault(route, [0] * (len(BUCKETS) + 1))
            counts[bisect_left(BUCKETS, seconds)] += 1
            self._seconds[route] += seconds  # type: ignore[assignment]  # a Counter adds floats as well

    def text(self, now: dict[str, tuple[str, float]]) -> str:
        """All of it as Prometheus reads it.

        Args:
            now: Other values by name, each with ``"counter"`` or ``"gauge"``.
        """
        with self._lock:
            requests = sorted(self._requests.items())
            buckets = {route: list(counts) for route, counts in sorted(self._buckets.items())}
            seconds = dict(self._seconds)
        lines = ["# TYPE bcls_requests_total counter"]
        lines += [f'bcls_requests_total{{route="{route}",status="{code}"}} {n}' for (route, code), n in requests]
        lines.append("# TYPE bcls_request_seconds histogram")
        for route, counts in buckets.items():
            total = 0
            for end, count in zip((*BUCKETS, "+Inf"), counts, strict=True):
                total += count
                lines.append(f'bcls_request_seconds_bucket{{route="{route}",le="{end}"}} {total}')
            lines.append(f'bcls_request_seconds_sum{{route="{route}"}} {seconds[route]:.6f}')
            lines.append(f'bcls_request_seconds_count{{route="{route}"}} {total}')
        for name, (kind, value) in now.items():
            lines += [f"# TYPE bcls_{name} {kind}", f"bcls_{name} {value:g}"]
        return "\n".join(lines) + "\n"
