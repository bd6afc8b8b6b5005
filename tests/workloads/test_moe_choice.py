"""Which values of --moe go with which other options."""

from dataclasses import replace

import pytest

from dsv4bench.errors import UsageError
from dsv4bench.workloads.geometry import V41_FLASH_MINI
from dsv4bench.workloads.moe_choice import Beside, moe_axis

ONE = Beside((V41_FLASH_MINI,), (1,), dep=False, replays=("off",), full_graphs=False)
TWO = replace(ONE, ranks=(2,), dep=True)
BARE = replace(V41_FLASH_MINI, name="bare", routed_experts=0)


@pytest.mark.parametrize(
    ("text", "beside", "found"),
    [
        ("off", replace(ONE, ranks=(2, 4), replays=("on",), geometries=(BARE,)), ("off",)),
        ("experts", ONE, ("experts",)),
        ("experts", replace(ONE, full_graphs=True), ("experts",)),
        ("off,collectives,experts", TWO, ("off", "collectives", "experts")),
        ("collectives", replace(TWO, geometries=(BARE,)), ("collectives",)),
    ],
    ids=["off goes with all", "one rank", "one rank in a full graph", "two ranks", "no experts"],
)
def test_what_can_be(text, beside, found):
    assert moe_axis(text, beside) == found


@pytest.mark.parametrize(
    ("text", "beside", "said"),
    [
        ("expert", ONE, "--moe expert: not known (did you mean 'experts'?)"),
        ("collectives", ONE, "--moe collectives: one rank has nothing to exchange; expected --dep N of at least 2"),
        ("collectives", replace(ONE, dep=True), "--moe collectives: one rank has nothing to exchange"),
        ("experts", replace(ONE, ranks=(2,)), "--moe experts: ranks of --dep-simulated run one after another"),
        ("off,experts", replace(ONE, replays=("on",)), "--moe experts: late layers that are replayed run other rows"),
        ("experts", replace(TWO, full_graphs=True), "--moe experts: in a graph ranks exchange equal rows"),
        ("experts", replace(ONE, geometries=(BARE,)), "--moe experts: bare has no experts; expected n_routed_experts"),
        ("experts", replace(TWO, ranks=(5,)), "--moe experts: 48 experts of v41-flash-mini are not dealt evenly to 5"),
    ],
    ids=["misspelt", "alone", "one process", "simulated", "replayed", "full graph", "no experts", "uneven"],
)
def test_what_cannot_be_is_one_line(text, beside, said):
    with pytest.raises(UsageError) as raised:
        moe_axis(text, beside)
    assert str(raised.value).startswith(said)
    assert "\n" not in str(raised.value)
