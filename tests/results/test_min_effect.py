"""The least effect that a verdict may name, as it is typed and where nothing is."""

import pytest

from dsv4bench.errors import UsageError
from dsv4bench.results.min_effect import MinEffect, default_min_effect, parse_min_effect


@pytest.mark.parametrize(
    ("text", "effect", "shown"),
    [
        ("0.5%", MinEffect(relative=0.005), "0.5 %"),
        (" 2 % ", MinEffect(relative=0.02), "2 %"),
        ("50us", MinEffect(absolute_ns=50_000), "50 us"),
        ("50 \u00b5s", MinEffect(absolute_ns=50_000), "50 us"),
        ("50\u03bcs", MinEffect(absolute_ns=50_000), "50 us"),
        ("1.5 ms", MinEffect(absolute_ns=1_500_000), "1.5 ms"),
        ("800ns", MinEffect(absolute_ns=800), "800 ns"),
        ("1s", MinEffect(absolute_ns=10**9), "1.0 s"),
    ],
)
def test_a_least_effect_is_a_share_or_a_time(text, effect, shown):
    assert parse_min_effect(text) == effect
    assert effect.text == shown
    assert effect.of_ns(10**6) == (effect.absolute_ns or effect.relative * 10**6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.5", "--min-effect 0.5: expected a number and one of %, ns, us, ms, s, e.g. 0.5% (did you mean '0.5%'?)"),
        (
            "50usec",
            "--min-effect 50usec: expected a number and one of %, ns, us, ms, s, e.g. 0.5% (did you mean 'us'?)",
        ),
        ("5 parsecs", "--min-effect 5 parsecs: expected a number and one of %, ns, us, ms, s, e.g. 0.5%"),
        ("half", "--min-effect half: expected a share or a time, e.g. 0.5% or 50us"),
        ("", "--min-effect : expected a share or a time, e.g. 0.5% or 50us"),
        ("1-2%", "--min-effect 1-2%: expected a share or a time, e.g. 0.5% or 50us"),
        ("0", "--min-effect 0: expected above 0, e.g. 0.5% or 50us"),
        ("-2", "--min-effect -2: expected above 0, e.g. 0.5% or 50us"),
        ("100", "--min-effect 100: expected a number and one of %, ns, us, ms, s, e.g. 0.5%"),
        ("0%", "--min-effect 0%: expected above 0% and below 100%, e.g. 0.5% or 50us"),
        ("100%", "--min-effect 100%: expected above 0% and below 100%, e.g. 0.5% or 50us"),
        ("-5us", "--min-effect -5us: expected a time above 0, e.g. 0.5% or 50us"),
    ],
)
def test_a_wrong_one_is_named_with_what_was_expected(text, message):
    with pytest.raises(UsageError) as error:
        parse_min_effect(text)
    assert str(error.value) == message


def test_a_graph_resolves_half_of_what_an_eager_step_does():
    assert (default_min_effect(graph=True).text, default_min_effect(graph=False).text) == ("0.5 %", "1 %")
