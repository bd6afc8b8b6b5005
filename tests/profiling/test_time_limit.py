"""What may still begin before a deadline, by the longest so far."""

import pytest

from dsv4bench.errors import UsageError
from dsv4bench.profiling.time_limit import Deadline, deadline_ns


@pytest.mark.parametrize(
    ("deadline", "asked_at", "answers"),
    [
        (None, [0, 10**12, 10**15], [True, True, True]),
        (1, [5, 7, 9], [True, False, False]),
        (30, [0, 10, 20, 30], [True, True, True, False]),
        (29, [0, 10, 20], [True, True, False]),
        (40, [0, 20, 21, 22], [True, True, False, False]),
        (40, [0, 1, 16, 26], [True, True, True, False]),
    ],
    ids=[
        "no limit",
        "the first always",
        "to the last moment",
        "not one moment more",
        "the first was the longest",
        "the longest so far, not the last",
    ],
)
def test_nothing_begins_that_would_by_the_longest_so_far_end_after_the_deadline(deadline, asked_at, answers):
    limit = Deadline(deadline, iter(asked_at).__next__)
    assert [limit.may_begin() for _ in asked_at] == answers


@pytest.mark.parametrize(
    ("text", "seconds"), [("600", 600), ("90s", 90), ("10m", 600), ("1.5h", 5400), ("0.25", 0.25), (" 2 m", 120)]
)
def test_a_time_limit_is_seconds_or_has_a_unit(text, seconds):
    assert deadline_ns(text, lambda: 7) == 7 + seconds * 10**9
    assert deadline_ns("", lambda: 7) is None


@pytest.mark.parametrize("text", ["0", "0m", "-5", "ten", "10 min", "1e3", "m", "nan", "9" * 400])
def test_another_time_limit_is_refused(text):
    with pytest.raises(UsageError, match=f"--time-limit {text}: expected seconds above 0, or minutes or hours as 10m"):
        deadline_ns(text)
