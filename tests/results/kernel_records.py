"""Records of kernels made by hand: 1 000 bytes read and 3 000 written, of a device whose ceilings are round."""

from __future__ import annotations

from dsv4bench.results.record import Record

CEILINGS = {
    "copy_bytes_per_s": 4.2e12,
    "matmul_flops_per_s": 8e14,
    "even_bytes_per_s": 4e12,
    "even_read_share": 0.5,
    "mixed_bytes_per_s": 3e12,
    "mixed_read_share": 0.25,
}


def kernel_record(provider="triton", cold=2_000, hot=1_000, flops=0, name="dequant", case="fp4", rows=4096, **changes):
    """One provider's record; `cold` and `hot` are nanoseconds of every sample, or lists of them."""
    samples = {
        "kernel_cold": list(cold) if isinstance(cold, list) else [cold] * 6,
        "kernel_hot": list(hot) if isinstance(hot, list) else [hot] * 6,
    }
    kernel = {
        "name": name,
        "case": case,
        "rows": rows,
        "shape": f"Shape({rows})",
        "provider": provider,
        "flops": flops,
        "bytes_read": 1_000_000,
        "bytes_written": 3_000_000,
        "set_bytes": 4_000_000,
        "sets": 45,
        "l2_bytes": 60_000_000,
        "ceilings": dict(CEILINGS),
    }
    fields = {
        "key": f"{name}-{case}-{rows}-{provider}",
        "group": f"{name}-{case}-{rows}",
        "created": "2026-11-30T12:00:00+00:00",
        "status": "ok",
        "engine": "gpu",
        "variant": {"provider": provider, "seed": 0},
        "kernel": kernel,
        "samples_ns": samples,
        "environment": {"gpu": "NVIDIA H200", "commit": "c0ffee" * 6, "torch": "2.11.0"},
    }
    return Record(**(fields | changes))


def unable(provider="sglang", status="skipped", reason="the package 'sglang' is not installed", **changes):
    """The record of a provider without a time."""
    return kernel_record(provider, status=status, reason=reason, samples_ns={}, **changes)
