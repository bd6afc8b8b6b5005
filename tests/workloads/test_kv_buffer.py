"""The workspace of change R: growth, head source, forgetting (specification 6.3)."""

import torch

from dsv4bench.workloads.kv_buffer import SparsePrefillKVBuffer

SOURCE, OTHER = (1000, 2000, 5), (1001, 2000, 5)


def buffer(rows: int = 0) -> SparsePrefillKVBuffer:
    made = SparsePrefillKVBuffer("cpu")
    if rows:
        made.reserve(rows)
    return made


def test_returns_rows_of_one_head_in_bf16():
    rows, filled = buffer().get_with_head(7, SOURCE)
    assert rows.shape == (7, 1, 512)
    assert rows.dtype == torch.bfloat16
    assert not filled


def test_second_layer_of_a_source_finds_the_head_filled_and_untouched():
    made = buffer(10)
    first, _ = made.get_with_head(8, SOURCE)
    first.fill_(3.0)
    second, filled = made.get_with_head(9, SOURCE)
    assert filled
    assert second.data_ptr() == first.data_ptr()
    assert (second[:8] == 3.0).all()


def test_any_part_of_the_source_tells_heads_apart():
    for part in range(3):
        made = buffer(10)
        made.get_with_head(8, SOURCE)
        changed = tuple(value + (place == part) for place, value in enumerate(SOURCE))
        assert not made.get_with_head(8, changed)[1], f"part {part} is ignored"


def test_get_clears_the_head():
    made = buffer(10)
    made.get_with_head(8, SOURCE)
    assert made.get(4).shape == (4, 1, 512)
    assert not made.get_with_head(8, SOURCE)[1]


def test_another_source_takes_the_head_over():
    made = buffer(10)
    made.get_with_head(8, SOURCE)
    made.get_with_head(8, OTHER)
    assert not made.get_with_head(8, SOURCE)[1]


def test_growing_clears_the_head_before_it_is_compared():
    made = buffer(8)
    made.get_with_head(8, SOURCE)
    assert not made.get_with_head(9, SOURCE)[1]
    assert made.capacity_rows == 9


def test_never_shrinks_and_grows_to_exactly_what_is_asked():
    made = buffer(20)
    made.get(3)
    assert made.capacity_rows == 20
    made.get(21)
    assert made.capacity_rows == 21
    assert made.capacity_bytes == 21 * 512 * 2


def test_another_dtype_allocates_anew_at_exactly_the_size_asked():
    made = buffer(20)
    made.get_with_head(8, SOURCE)
    assert made.get(3, torch.float32).dtype == torch.float32
    assert made.capacity_rows == 3
    assert not made.get_with_head(3, SOURCE)[1]


def test_forget_head():
    made = buffer(10)
    made.get_with_head(8, SOURCE)
    made.forget_head()
    assert not made.get_with_head(8, SOURCE)[1]


def test_a_head_of_no_rows_can_be_filled():
    made = buffer(10)
    empty = (1000, 2000, 0)
    made.get_with_head(4, empty)
    assert made.get_with_head(4, empty)[1]


def test_poison_forgets_and_shows():
    made = buffer(4)
    rows, _ = made.get_with_head(4, SOURCE)
    rows.zero_()
    made.poison()
    rows, filled = made.get_with_head(4, SOURCE)
    assert not filled
    assert rows.isnan().all()
