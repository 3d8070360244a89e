"""Times that only LSF has."""

from __future__ import annotations

from typing import Final

EARLY_S: Final = 5.0
"""LSF looks at run limits every few seconds: so long before its end a job that is ended counts as one whose time is over."""
