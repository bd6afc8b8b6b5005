"""A wrong argument of any kernel is refused by its name, by every provider alike, before anything is written."""

import re
from collections.abc import Callable

import pytest
import torch

from dsv4bench.kernels import CATALOGUE, kernel
from dsv4bench.profiling.contract_check import Tensors, made, poison

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
OTHER = {torch.int32: torch.int64, torch.float32: torch.bfloat16}
OTHER |= {other: one for one, other in OTHER.items()}

# arguments that come in two dtypes, i32 and i64 or f32 and bf16; all others have one
TWO_DTYPES = {
    "norm_rope_store": {"positions", "loc"},
    "store": {"loc"},
    "compress_c1": {"positions", "loc"},
    "compress_c2": {"positions", "loc"},
    "compress_c2_decode": {"positions", "loc"},
    "compress_pool_decode": {"positions", "loc", "pair_loc"},
    "compress_window": {"ape", "pool", "out"},  # x has that of ape
    "compress_window_decode": {"ape", "pool", "out"},
    "compress_norm_rope_store": {"kv"},  # weight has that of kv
    "page_table_positions": {"req", "seq_lens"},
    "low_ratio_metadata": {"seq_lens", "loc"},
    "extend_offsets": {"starts", "lens"},
    "chunk_windows": {"req", "query_pos"},
    "chunk_gather": {"req"},
    "index_key": {"positions", "loc"},
    "index_pack": {"loc"},
    "index_store_fp8": {"loc"},
    "dequant": {"ids"},
    "gather_requant": {"ids"},
}

# arguments whose last size is the caller's, whatever then does not fit it; that of all others is known
FREE_SIZE = {
    "rms_norm": {"x"},
    "rope": {"x"},
    "compress_c2": {"starts"},
    "compress_norm_rope_store": {"out_loc"},
    "plan_prefill": {"req_pool_indices", "req_to_token", "full_to_state"},
    "plan_decode": {"req_pool_indices", "req_to_token", "full_to_state"},
    "page_table_positions": {"req_to_token", "seq_lens"},
    "low_ratio_metadata": {"seq_lens"},
    "fill_compressed_indices": {"table", "lens", "slots"},
    "mqa_schedule": {"lens"},
    "extend_offsets": {"starts", "lens", "offsets"},
    "chunk_windows": {"seq_lens", "table", "full_to_swa", "query_pos", "swa_ids"},
    "chunk_gather": {"seq_lens", "table", "ids"},
    "index_logits": {"page_table", "logits"},
    "index_topk": {"logits"},
    "index_candidates": {"logits", "blocks"},
    "combine": {"raw", "positions", "seq_lens"},
    "window_slots": {"positions", "page_table", "full_to_swa"},
    "compressed_slots": {"raw", "page_table"},
    "dequant": {"ids"},
    "gather_requant": {"ids"},
    "remap_holes": {"indices"},
    "sparse_attention": {"indices"},
    "paged_attention": {"main_slots", "extra_slots"},
    "mhc_pre": {"streams"},
    "mhc_post": {"streams"},
}


def first_call(name: str) -> Tensors:
    """Return the tensors of a kernel's first example, its outputs full of poison."""
    tensors = made(kernel(name), kernel(name).examples[0], "cpu")
    return tensors | {output: poison(tensors[output]) for output in kernel(name).outputs}


def arguments(tensors: Tensors) -> dict[str, torch.Tensor]:
    return {name: value for name, value in tensors.items() if torch.is_tensor(value)}


def longer(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_zeros(*tensor.shape[:-1], tensor.shape[-1] + 1)


def of_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype)


WRONG = {
    "dtype": lambda tensor: of_dtype(tensor, torch.complex64),
    "a dimension more": lambda tensor: tensor[None],
    "a dimension less": lambda tensor: tensor[0],
    "size": longer,
}


def blamed(take: Callable[[Tensors], object], tensors: Tensors) -> str | None:
    """Return the argument that `take` says does not fit, or None if it takes all of them."""
    try:
        take(tensors)
    except ValueError as error:
        return re.match(r"(?:width of |columns of )?(\w+):? ", str(error))[1]
    return None


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_kernel_takes_the_dtypes_that_it_names_and_no_others(name):
    tensors = first_call(name)
    taken = {
        (argument, dtype)
        for argument, tensor in arguments(tensors).items()
        for dtype in DTYPES
        if dtype != tensor.dtype
        and blamed(kernel(name).check, tensors | {argument: of_dtype(tensor, dtype)}) != argument
    }
    assert taken == {(argument, OTHER[tensors[argument].dtype]) for argument in TWO_DTYPES.get(name, ())}


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_sizes_that_a_caller_chooses_are_these(name):
    tensors = first_call(name)
    changed = {argument: tensors | {argument: longer(tensor)} for argument, tensor in arguments(tensors).items()}
    taken = {argument for argument, given in changed.items() if blamed(kernel(name).check, given) != argument}
    assert taken == FREE_SIZE.get(name, set())


CASES = [
    pytest.param(name, provider, id=f"{name}-{provider.name}")
    for name in CATALOGUE
    for provider in kernel(name).providers  # those of packages too, which are imported after the check
]


@pytest.mark.parametrize(("name", "provider"), CASES)
def test_every_provider_refuses_a_wrong_argument_by_name_and_writes_nothing(name, provider):
    tensors = first_call(name)
    for argument, tensor in arguments(tensors).items():
        for what, changed in WRONG.items():
            if what != "size" or argument not in FREE_SIZE.get(name, ()):
                given = tensors | {argument: changed(tensor)}
                said = {blamed(take, given) for take in (provider.build, provider.to_time)}
                assert said == {argument}, f"{what} of {argument}"
    for output in kernel(name).outputs:
        assert torch.equal(tensors[output].view(torch.uint8), poison(tensors[output]).view(torch.uint8))


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_number_below_zero_is_refused_where_it_is_read(name):
    """A number beside an optional tensor that is not there is read by nobody."""
    tensors = first_call(name)
    numbers = [key for key, value in tensors.items() if type(value) is int]
    if tensors.get("candidates", ...) is None:
        numbers.remove("candidate_block")
    for number in numbers:
        with pytest.raises(ValueError, match="expected"):
            kernel(name).check(tensors | {number: -1})
