"""Shows that the tests notice an off-by-one in every Triton kernel: `python -m tests.mutations [KERNEL ...]`.

Each mutation is made in a copy of the package, where the kernel's tests and its part of the contract test must then
fail. A mutation that survives is a test that is missing. The suite itself is taken to be green.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONTRACT = "tests/kernels/test_contract.py"
AT_ONCE = 2
FAILED = 1  # pytest's; 2 to 5 mean that it could not run tests, and a signal is negative
LIMIT_S = 600


@dataclass(frozen=True)
class Mutation:
    """One change of a Triton body, text `old` to `new`; the file and its tests are called as the kernel if not said."""

    kernel: str
    old: str
    new: str
    file: str = ""
    test: str = ""

    @property
    def path(self) -> str:
        return f"dsv4bench/kernels/{self.file or self.kernel}.py"

    @property
    def test_path(self) -> str:
        return f"tests/kernels/test_{self.test or self.kernel}.py"


MUTATIONS = (
    Mutation("rms_norm", "live = column < WIDTH", "live = column < WIDTH - 1", test="row_triton"),
    Mutation("rope", "freqs_ptr, position, live", "freqs_ptr, position + 1, live"),
    Mutation("norm_rope_store", "or slot >= 0:", "or slot > 0:"),
    Mutation("norm_rope_store", "live = slot + one >= 0", "live = slot + one > 0"),
    Mutation("norm_rope_store", "tl.load(positions_ptr + row)", "tl.load(positions_ptr + row) + 1"),
    Mutation("norm_rope_store", "* ROWS + i, n - 1)", "* ROWS + i, n - 2)"),
    Mutation("store", "if row < n:", "if row < n - 1:"),
    Mutation("store", "store_rows(cache_ptr, slot + one,", "store_rows(cache_ptr, slot + one + 1,"),
    Mutation("store", "tl.program_id(0) * ROWS + i", "tl.program_id(0) * ROWS + i + 1"),
    Mutation("store", "- 8, 114)", "- 8, 115)", file="codec_triton", test="codec_triton"),
    Mutation("compress_c1", "if slot > 0:", "if slot >= 0:"),
    Mutation("compress_c1", "freqs_ptr, position + one", "freqs_ptr, position + one + 1"),
    Mutation("compress_c1", "slot + one > 0, ROW", "slot + one > -1, ROW"),
    Mutation("compress_c1", "* ROWS + i, count - 1)", "* ROWS + i, count - 2)"),
    Mutation(
        "compress_c1",
        "largest[:, None], step",
        "largest[:, None] * 2.0, step",
        file="codec_triton",
        test="codec_triton",
    ),
    Mutation("compress_c2", "req * RING + (position - 1) % RING", "req * RING + position % RING"),
    Mutation("compress_c2", "position - 1,\n            loc >> 1,", "position,\n            loc >> 1,"),
    Mutation("compress_c2_decode", "ring_ptr + (position - 1) % RING", "ring_ptr + position % RING"),
    Mutation("compress_c2_decode", "if position % 2 == 0:", "if position % 2 == 1:"),
    Mutation("compress_pool_decode", "(position + RING - 1) % RING", "(position + RING) % RING"),
    Mutation("compress_pool_decode", "live & (position > 0)", "live & (position > 1)"),
    Mutation("compress_window", "seq_len > RATIO", "seq_len >= RATIO", file="window_pooling_triton"),
    Mutation("compress_window", "pool_ptr + write_row * WIDTH", "pool_ptr + (write_row + 1) * WIDTH"),
    Mutation("compress_window_decode", "row, WINDOW - 1, page_0", "row, WINDOW - 2, page_0"),
    Mutation("compress_window_decode", "if seq_len % RATIO == 0:", "if seq_len % RATIO == 1:"),
    Mutation("compress_norm_rope_store", "mask=rows < count", "mask=rows < count - 1"),
    Mutation(
        "compress_norm_rope_store",
        "round_bf16(rotate_tail(y, freqs_ptr, seq_len - RATIO,",
        "round_bf16(rotate_tail(y, freqs_ptr, seq_len - RATIO + 1,",
    ),
    Mutation("plan_prefill", "live & (position >= kept_from)", "live & (position > kept_from)"),
    Mutation("plan_prefill", "older = WINDOW - 1 - tl", "older = WINDOW - tl"),
    Mutation("plan_prefill", "(starts <= 0)", "(starts < 0)"),
    Mutation("plan_prefill", "(starts < TOKENS)", "(starts < TOKENS - 1)"),
    Mutation("plan_prefill", "later = real & (lane > 0)", "later = real"),
    Mutation("plan_prefill", "TOKENS - 1 - tl.arange", "TOKENS - tl.arange"),
    Mutation("plan_decode", "seq - 1 - RATIO", "seq - RATIO"),
    Mutation("plan_decode", "state_rows(req, seq - 1, live", "state_rows(req, seq, live"),
    Mutation("page_table_positions", "positions_ptr + row, length - 1", "positions_ptr + row, length"),
    Mutation("low_ratio_metadata", "tl.where(length % 2 == 0", "tl.where(length % 2 == 1"),
    Mutation("fill_compressed_indices", "column < tl.load(lens_ptr + row)", "column <= tl.load(lens_ptr + row)"),
    Mutation("mqa_schedule", "before = ends <= target", "before = ends < target"),
    Mutation("mqa_schedule", "& (ends <= target)", "& (ends < target)"),
    Mutation("mqa_schedule", "tl.minimum(first, batch)", "first"),
    Mutation("mqa_schedule", "range(CHUNK, EACH, CHUNK)", "range(CHUNK, EACH - CHUNK, CHUNK)"),
    Mutation("low_ratio_metadata", "r2_pages_ptr + row * WIDTH + column", "r2_pages_ptr + row * WIDTH + column + 1"),
    Mutation("low_ratio_metadata", "live = rows < count", "live = rows < count - 1"),
    Mutation("low_ratio_metadata", "live = rows < count", "live = rows <= count"),
    Mutation("low_ratio_metadata", "tl.program_id(0) - apart", "tl.program_id(0) - apart + 1"),
    Mutation("page_table_positions", "first = tl.program_id(1) == 0", "first = tl.program_id(1) == 1"),
    Mutation("extend_offsets", "live = column < requests", "live = column < requests - 1"),
    Mutation("chunk_windows", "position = seq - gathered + row", "position = seq - gathered + row - 1"),
    Mutation("chunk_gather", "mask=request < end", "mask=request <= end"),
    Mutation("fake_quant", "positions < table_rows)", "positions < table_rows - 1)"),
    Mutation("index_key", "live = slots > 0", "live = slots >= 0"),
    Mutation("index_key", "freqs_ptr, first, live", "freqs_ptr, first, there"),
    Mutation("index_key", "there = rows < count", "there = rows < count - 1"),
    Mutation("index_key", "mask=there, other=0) & -RATIO", "mask=there, other=0)"),
    Mutation("index_key", "mask=even + 1 < count", "mask=even + 2 < count"),
    Mutation("index_key", "odd & (slots_even > 0)", "odd & (slots_even > 1)"),
    Mutation("index_key", "top <= 3.0", "top < 3.0", file="codec_index_triton"),
    Mutation("index_pack", "store_index_rows(cache_ptr, slots,", "store_index_rows(cache_ptr, slots + 1,"),
    Mutation("index_pack", "* WORDS + word, payload", "* WORDS + word + 1, payload"),
    Mutation("index_store_fp8", "inside = rows < count", "inside = rows < count - 1"),
    Mutation("index_store_fp8", "store_index_fp8_rows(cache_ptr, slots,", "store_index_fp8_rows(cache_ptr, slots + 1,"),
    Mutation("index_query", "freqs_ptr, position, live", "freqs_ptr, position + 1, live"),
    Mutation("index_logits", "position[:, None] < sees[None, :]", "position[:, None] <= sees[None, :]"),
    Mutation("index_topk", "(equal_at < room)", "(equal_at <= room)"),
    Mutation("index_candidates", "newest = (seen + SIZE - 1) // SIZE - 1", "newest = seen // SIZE"),
    Mutation("combine", "mask=owned, other=0) <= at", "mask=owned, other=0) < at"),
    Mutation("window_slots", "tl.minimum(position - first + 1, WINDOW)", "tl.minimum(position - first, WINDOW)"),
    Mutation("compressed_slots", "positions_ptr + row) + 1) // RATIO", "positions_ptr + row) + 0) // RATIO"),
    Mutation("dequant", "live = row < n", "live = row < n - 1"),
    Mutation("gather_requant", "live = row < count", "live = row < count - 1"),
    Mutation("remap_holes", "tl.where(index < 0", "tl.where(index <= 0"),
    Mutation("sparse_attention", "valid = (index >= 0)", "valid = (index > 0)"),
    Mutation("paged_attention", "mask=begin + key < length", "mask=begin + key <= length"),
    Mutation("mhc_pre", "live = channel < HIDDEN", "live = channel < HIDDEN - 1", test="mhc"),
    Mutation("mhc_stats", "live = row < rows", "live = row < rows - 1", test="mhc"),
    Mutation("mhc_stats", "(number == ROW_MIXES)", "(number == ROW_MIXES - 1)", test="mhc"),
    Mutation("mhc_mix", "live = row < rows", "live = row < rows - 1", test="mhc"),
    Mutation("mhc_mix", "stats_ptr + at + ROW_MIXES", "stats_ptr + at + ROW_MIXES - 1", test="mhc"),
    Mutation("mhc_post", "row * ROW_MIXES + 4", "row * ROW_MIXES + 3", test="mhc"),
)  # fmt: skip


def first_failure(folder: Path, *arguments: str) -> str | None:
    """Return what went wrong in a run of pytest in `folder`, None if nothing did."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments]
    try:
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no end in {LIMIT_S} s"
    if run.returncode < 0:
        return f"signal {-run.returncode} in {arguments[0]}"
    if run.returncode > FAILED:
        raise RuntimeError(f"pytest {arguments} exited {run.returncode}, expected 0 or {FAILED}:\n{run.stdout}")
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    return None if run.returncode == 0 else failed[1] if failed else arguments[0]


def killer(mutation: Mutation) -> str | None:
    """Return the test that fails under a mutation, None if it survives."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("dsv4bench", "tests"):
            shutil.copytree(ROOT / part, folder / part)
        shutil.copy(ROOT / "pyproject.toml", folder)
        text = (folder / mutation.path).read_text(encoding="utf-8")
        (folder / mutation.path).write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
        contract = (CONTRACT, "-k", f"[{mutation.kernel}- and -triton]")
        return first_failure(folder, mutation.test_path) or first_failure(folder, *contract)


def main(kernels: list[str]) -> int:
    """Print a line per mutation of these kernels, of all if none is named; 1 if one survives."""
    unknown = set(kernels) - {mutation.kernel for mutation in MUTATIONS}
    if unknown:
        raise SystemExit(f"no mutation of {', '.join(sorted(unknown))}")
    chosen = [mutation for mutation in MUTATIONS if not kernels or mutation.kernel in kernels]
    survived = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for mutation, test in zip(chosen, pool.map(killer, chosen), strict=True):
            survived += test is None
            change = " ".join(mutation.new.split())
            sys.stdout.write(f"{mutation.kernel:<26}{change:<58}{test or 'SURVIVED'}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - survived} killed, {survived} survived\n")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
