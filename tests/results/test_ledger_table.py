"""The ledger's plain form: small, whole, and read back as it was; kernels known by either form of their name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.errors import RecordError
from dsv4bench.results.ledger_table import Node, kernel_name, read_ledger, to_plain
from dsv4bench.results.schema import decode, encode
from tests.results.synthetic import record


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_dequant", "_dequant"),
        ("nvjet_tst_128x8_64x12_1x2_h_bz_coopA_NNT", "nvjet_tst_128x8_64x12_1x2_h_bz_coopA_NNT"),
        (
            "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_",
            "at::native::vectorized_elementwise_kernel",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >"
            "(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
            "at::native::vectorized_elementwise_kernel",
        ),
        ("_ZN2at6native12_GLOBAL__N_121indexSelectLargeIndexIfEEvv", "at::native::indexSelectLargeIndex"),
        (
            "void at::native::(anonymous namespace)::indexSelectLargeIndex<float>(int)",
            "at::native::indexSelectLargeIndex",
        ),
        ("_ZN8internal5gemvx6kernelIiLb0EEENSt9enable_ifIXntT7_EvE4typeET_", "internal::gemvx::kernel"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, false>(int)", "internal::gemvx::kernel"),
        ("_ZN7cutlass7Kernel2I25cutlass_80_tensoropEEvNT_6ParamsE", "cutlass::Kernel2"),
        ("_ZN5flash4CoreIfE6kernelEPf", "flash::Core"),
        ("void flash::Core<float>::kernel(float*)", "flash::Core"),
        ("_Z4fillPfi", "fill"),
        ("_ZL4fillPfi", "fill"),
        ("_Z4fill6ParamsPf", "fill"),
        (
            "_Z31ncclDevKernel_AllGather_RING_LL24ncclDevKernelArgsStorageILm4096EE",
            "ncclDevKernel_AllGather_RING_LL",
        ),
        (
            "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllGather_RING_LL",
        ),
        ("fill(float*, int)", "fill"),
        ("_Z", "_Z"),
        ("", ""),
    ],
    ids=[
        "triton",
        "cublas",
        "mangled template",
        "the same demangled",
        "mangled in an anonymous namespace",
        "the same demangled",
        "mangled with a computed return type",
        "the same demangled",
        "a class as argument",
        "mangled member of a template",
        "the same demangled",
        "mangled function",
        "mangled local function",
        "mangled function of a class",
        "mangled function of a template",
        "the same demangled",
        "the same demangled",
        "no name",
        "nothing",
    ],
)
def test_a_kernel_has_one_name_whoever_lists_it(name, expected):
    assert kernel_name(name) == expected


COMPRESS = Node(2, 2, "compress_c2", "kernels", "_compress", 0)
COPY = Node(2, 2, "store", "copies", "Memcpy", 1)
LOOSE = Node(None, None, None, "kernels", "_fill", 2)
WAIT = Node(3, None, None, "others", "EventRecord", 3)
GRAPHS = ((COMPRESS, COPY, LOOSE, WAIT), (), (COMPRESS,))


def test_what_repeats_stands_once():
    assert to_plain(GRAPHS) == {
        "ops": ["compress_c2", "store"],
        "places": [[2, 2, 0], [2, 2, 1], [None, None, None], [3, None, None]],
        "names": [["kernels", "_compress"], ["copies", "Memcpy"], ["kernels", "_fill"], ["others", "EventRecord"]],
        "graphs": [[0, 0, 1, 1, 2, 2, 3, 3], [], [0, 0]],
        "numbers": [None, None, None],
    }


def test_a_node_without_a_range_is_not_placed():
    assert [node.placed for node in GRAPHS[0]] == [True, True, False, True]


nodes = st.builds(
    Node,
    st.none() | st.integers(0, 3),
    st.none() | st.integers(0, 3),
    st.none() | st.sampled_from(["store", "rope"]),
    st.sampled_from(["kernels", "copies", "sets", "others", "dynamic"]),
    st.text(max_size=3),
    st.none() | st.integers(0, 2**32 - 1),
)


@given(st.lists(st.lists(nodes, max_size=6).map(tuple), max_size=3).map(tuple))
def test_the_ledger_comes_back_out_of_a_record(graphs):
    one = record(graph=True, capture_ledger=to_plain(graphs))
    assert read_ledger(decode(encode(one), "a line").capture_ledger) == graphs


def test_a_cell_of_forty_layers_takes_less_than_thirty_kilobytes():
    ops = ["inverse_rope", "o_proj_a", "o_proj_b", "input_norm", "qkv_proj", "q_norm", "q_proj", "q_rope"]
    names = [f"nvjet_tst_128x{8 * i}_64x12_1x2_h_bz_coopA_NNT" for i in range(40)]
    graphs = tuple(
        tuple(Node(layer, 2, ops[number % 8], "kernels", names[(number * layer) % 40], number) for number in range(25))
        for layer in range(49)
    )
    assert sum(map(len, graphs)) == 1225
    assert len(json.dumps(to_plain(graphs), separators=(",", ":"))) < 30_000


@pytest.mark.parametrize(
    "change",
    [
        {"ops": []},
        {"places": [[2]]},
        {"graphs": [[0, 9]]},
        {"graphs": [[0]]},
        {"numbers": []},
        {"numbers": [[1, 2], None, None]},
        {"graphs": None},
    ],
    ids=["no ops", "a short place", "a name too far", "half a node", "no numbers", "too few numbers", "no graphs"],
)
def test_tables_that_do_not_fit_are_refused(change):
    with pytest.raises(RecordError, match="capture_ledger: tables that do not fit together"):
        read_ledger({**to_plain(GRAPHS), **change})


def test_missing_tables_are_refused():
    with pytest.raises(RecordError, match="capture_ledger"):
        read_ledger({})
