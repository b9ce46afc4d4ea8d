"""Limits of the web app."""

from dataclasses import dataclass

from bcls._core.errors import check_number, check_whole, fail

#: Fewest characters of a token; shorter ones can be guessed.
SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class WebSettings:
    """What the web app lets in.

    Raises:
        ValueError: A setting is out of its range.
    """

    token: str | None = None
    """What a request must know."""
    any_host: bool = False
    """Whether the app may be called by any name; otherwise by those of this machine alone, so that another site cannot
    reach it by pointing a name of its own here."""
    at_once: int = 64
    """Requests that are worked on or wait; more get 503."""
    timeout: float = 15.0
    """Seconds for a request, and for the arrival of its body."""
    max_upload: int = 20 * 2**20
    """Most bytes of a body."""
    max_pixels: int = 40_000_000
    """Most pixels of a picture that is sent."""

    def __post_init__(self) -> None:
        if self.token is not None and (len(self.token) < SHORTEST_TOKEN or not self.token.isascii()):
            got = f"{len(self.token)} characters"
            remedy = "make one with `python -c 'import secrets; print(secrets.token_urlsafe())'`"
            fail("token", f"at least {SHORTEST_TOKEN} ASCII characters", got, remedy)
        for name in ("at_once", "max_upload", "max_pixels"):
            check_whole(name, getattr(self, name), least=1)
        check_number("timeout", self.timeout, "15 is usual", above=0)
