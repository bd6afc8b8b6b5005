"""Which cells share a figure, and which of them a panel."""

from dataclasses import replace

import pytest

from dsv4bench.dashboards.panels import file_words, largest, launch_panels, sections
from dsv4bench.results.compare import Pair, pairs
from dsv4bench.results.frame import comparison_frame
from tests.dashboards.drawn import compressors, modes
from tests.results.synthetic import GPU, cpu_sweep, record, sweep, with_variant


def of_commit(one, commit):
    return replace(one, key=f"{one.key}-{commit}", environment={**GPU, "commit": commit})


def test_two_states_of_the_code_never_share_a_figure():
    cells = [of_commit(record(1, reuse), commit * 40) for commit in "ab" for reuse in ("off", "on")]
    assert [(name, len(part)) for name, part in sections(comparison_frame(cells))] == [
        ("-commit-aaaaaaaaaaaa", 1),
        ("-commit-bbbbbbbbbbbb", 1),
    ]


def test_a_cell_that_two_commands_measured_is_in_two_figures():
    first = [record(batch, reuse) for batch in (1, 2, 8) for reuse in ("off", "on")]
    again = [replace(one, argv=["dsv4bench", "prefill", "--quick"]) for one in first if one.batch["requests"] == 2]
    found = sections(comparison_frame([*first, *again]))
    assert [(name, list(part["requests"])) for name, part in found] == [("", [1, 2, 8]), ("-run-2", [2])]


@pytest.mark.parametrize(("switch", "value"), [("align", "free"), ("mem-fraction", 0.7)])
def test_cells_with_a_switch_that_others_lack_have_a_figure_of_their_own(switch, value):
    cells = [record(1, reuse) for reuse in ("off", "on")]
    found = sections(comparison_frame([*cells, *(with_variant(one, **{switch: value}) for one in cells)]))
    assert [len(part) for _, part in found] == [1, 1]
    assert [name for name, _ in found] == ["", f"-{switch}-{str(value).replace('.', '-')}"]


def test_machines_share_a_figure_where_they_are_told_to():
    frame = comparison_frame([*sweep(), *cpu_sweep()])
    settings = ("label", "machine", "commit", "diff", "src", "geometry", "provider")
    assert len(sections(frame)) == 2
    assert [name for name, _ in sections(frame, together=settings)] == [""]


@pytest.mark.parametrize(
    ("records", "titles"),
    [
        (sweep(), ["eager", "graph"]),
        (cpu_sweep(), ["eager", "tape"]),
        (modes("full graph", "graph hopper", "eager"), ["eager", "graph hopper", "full graph"]),
        (
            compressors(modes=("graph sm100",)),
            ["graph sm100, compressor torch", "graph sm100, compressor fused"],
        ),
    ],
    ids=["two modes", "tape", "three modes", "two compressors"],
)
def test_each_launch_mode_has_a_panel(records, titles):
    assert [title for title, _ in launch_panels(pairs(records, "reuse", "off", "on"))] == titles


def test_sides_of_two_modes_are_named_one_after_the_other():
    eager, graph = record(1), with_variant(record(1, graph=True), breaks="sm100")
    assert [title for title, _ in launch_panels([Pair(eager, graph)])] == ["eager -> graph sm100"]


def test_the_largest_batch_is_the_last_one_with_the_most_rows():
    cells = [Pair(None, record(batch)) for batch in (1, 8, 64, 2)]  # 8 and 64 requests have 8 192 rows
    assert largest(cells).any.batch["requests"] == 64


@pytest.mark.parametrize(
    ("text", "words"), [("v41+fp4", "v41-fp4"), ("../../x", "------x"), ("NVIDIA H200", "nvidia-h200"), ("a/", "a")]
)
def test_a_name_in_a_file_s_name_leaves_no_folder(text, words):
    assert file_words(text) == words


def test_a_name_says_no_more_than_tells_the_parts_apart():
    cells = [of_commit(with_variant(record(1), kv=kv), commit * 40) for kv, commit in (("v4", "a"), ("v41", "b"))]
    assert [name for name, _ in sections(comparison_frame(cells))] == ["-kv-v4", "-kv-v41"]
    cells.append(of_commit(with_variant(record(1), kv="v41"), "a" * 40))
    assert [name for name, _ in sections(comparison_frame(cells))] == [
        "-commit-aaaaaaaaaaaa-kv-v4",
        "-commit-bbbbbbbbbbbb-kv-v41",
        "-commit-aaaaaaaaaaaa-kv-v41",
    ]


def test_lengths_of_one_run_do_not_split_another():
    lengths = compressors(modes=("eager",))  # one request of two lengths
    other = [with_variant(one, kv="v4") for one in modes("eager")]  # two batches, each of one length
    mixed = [with_variant(one, kv="v41") for one in (*lengths, *compressors((1024,), modes=("eager",)), *other)]
    assert [(name, len(part)) for name, part in sections(comparison_frame([*lengths, *other]))] == [
        ("-kv-v41-fp4", 4),
        ("-kv-v4", 2),
    ]
    # one request of 1 024 tokens with the fused compressor is in two of the runs
    assert [(name, list(part["requests"])) for name, part in sections(comparison_frame(mixed))] == [
        ("-extend-64", [1, 1]),
        ("-extend-1024", [1, 1, 8]),
        ("-extend-1024-run-2", [1]),
    ]
