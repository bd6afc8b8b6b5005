"""What reading a large torch.profiler trace costs, beside `json` with pandas, and HolisticTraceAnalysis if installed.

Usage: python benchmarks/trace_reading.py [kernels]. Writes the same trace in every run (140 000 kernels, about 200 MB)
into a temporary folder, plain and gzipped, and reads each in a process of its own. The question is the same for all:
how many kernels ran, how many of them have their call in the file, and how long they took.
"""

import gzip
import importlib.util
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

from dsv4bench.profiling.traces import columns, kineto_reader

KERNELS = 140_000
KERNELS_OF_A_LAYER = 20
NAMES = (
    "_dequant_rows",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)",
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTT",
    "void sm100_fp8_gemm_1d1d_impl<(cute::UMMA::Major)0, 128u, 112u, 128u, 16u, 4u, 128u, 2u, true, 1u, 148u>",
)
FIRST_NS = 5_140_677_167_473_345

HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {"id": 0, "name": "NVIDIA B300 SXM6 AC", "totalGlobalMem": 287431131136, "numSms": 148}
  ],
  "cupti_version": 130100, "cuda_runtime_version": 13010, "cuda_driver_version": 13010,
  "displayTimeUnit": "ms", "baseTimeNanoseconds": 1775078550000000000,
  "traceEvents": [
"""
PYTHON = """  {{
    "ph": "X", "cat": "python_function", "name": "sglang/srt/models/deepseek_v4.py({line}): forward",
    "pid": 454, "tid": 454,
    "ts": {ts}, "dur": {dur},
    "args": {{
      "Python parent id": {index}, "Python id": {index}, "Python module id": 7, "Ev Idx": {index}
    }}
  }},
"""
OPERATOR = """  {{
    "ph": "X", "cat": "cpu_op", "name": "aten::mul", "pid": 454, "tid": 454,
    "ts": {ts}, "dur": {dur},
    "args": {{
      "External id": {index},"Record function id": 0, "Input Dims": [[4096, 7168], [4096, 7168]], "Ev Idx": {index}
    }}
  }},
"""
RANGE = """  {{
    "ph": "X", "cat": "user_annotation", "name": "layer {layer}", "pid": 454, "tid": 454,
    "ts": {ts}, "dur": {dur},
    "args": {{
      "External id": {index},"Record function id": 0, "Ev Idx": {index}
    }}
  }},
"""
LAUNCH = """  {{
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 454, "tid": 454,
    "ts": {ts}, "dur": {dur},
    "args": {{
      "External id": {index}, "cbid": 211, "correlation": {index}
    }}
  }},
  {{
    "ph": "s", "id": {index}, "pid": 454, "tid": 454, "ts": {ts},
    "cat": "ac2g", "name": "ac2g"
  }},
"""
KERNEL = """  {{
    "ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 7,
    "ts": {device_ts}, "dur": {dur},
    "args": {{
      "External id": {index},
      "queued": 0, "device": 0, "context": 1,
      "stream": 7, "correlation": {index},
      "registers per thread": 32, "shared memory": 0, "priority": 0,
      "graph id": 0, "graph node id": 0,
      "blocks per SM": 7.757576, "warps per SM": 31.030304,
      "grid": [1024, 1, 1],
      "block": [128, 1, 1],
      "est. achieved occupancy %": 48
    }}
  }},
  {{
    "ph": "f", "id": {index}, "pid": 0, "tid": 7, "ts": {device_ts},
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  }},
"""
TAIL = """  {
    "name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 5140677171059.512
  }
  ],
  "traceName": "benchmark.json"
}
"""


def microseconds(time_ns: int) -> str:
    """Return a time as Kineto writes it."""
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def write_trace(path: Path, kernels: int) -> None:
    """Write a trace with this many launched kernels, and the operators and Python functions around them."""
    with path.open("w", encoding="utf-8") as file:
        file.write(HEAD)
        for index in range(1, kernels + 1):
            start_ns = FIRST_NS + index * 9_137
            values = {
                "index": index,
                "ts": microseconds(start_ns),
                "dur": microseconds(4_000 + index % 997),
                "device_ts": microseconds(start_ns + 6_011),
                "name": NAMES[index % len(NAMES)],
                "line": index % 977,
                "layer": index // KERNELS_OF_A_LAYER % 61,
            }
            before = PYTHON + OPERATOR if index % KERNELS_OF_A_LAYER else RANGE + PYTHON + OPERATOR
            file.write((before + LAUNCH + KERNEL).format(**values))
        file.write(TAIL)


def read_ours(path: Path) -> dict[str, float]:
    """Return kernels and their time in ns, by the reader of the package."""
    trace = kineto_reader.read(path)
    rows = trace.operations[trace.operations["kind"] == columns.KERNEL]
    launched = rows["correlation"].isin(trace.launches["correlation"]).sum()
    return {"kernels": len(rows), "launched": int(launched), "ns": int((rows["end_ns"] - rows["start_ns"]).sum())}


def read_plainly(path: Path) -> dict[str, float]:
    """Return the same by `json` and a pandas frame of all events, the usual way."""
    text = path.read_bytes()
    events = json.loads(gzip.decompress(text) if path.suffix == ".gz" else text)["traceEvents"]
    frame = pd.DataFrame(events)
    frame["correlation"] = [args.get("correlation") if isinstance(args, dict) else None for args in frame["args"]]
    rows = frame[(frame["ph"] == "X") & (frame["cat"] == "kernel")]
    launches = frame[frame["cat"].isin(["cuda_runtime", "cuda_driver"])]
    launched = rows["correlation"].isin(launches["correlation"]).sum()
    return {"kernels": len(rows), "launched": int(launched), "ns": round(rows["dur"].sum() * 1000)}


def read_by_hta(path: Path) -> dict[str, float]:
    """Return the same by HolisticTraceAnalysis, which rounds times down to microseconds."""
    from hta.common.trace_parser import parse_trace_dataframe
    from hta.configs.parser_config import ParserConfig

    _, frame, symbols = parse_trace_dataframe(str(path), ParserConfig.get_default_cfg())
    rows = frame[frame["cat"] == symbols.sym_index["kernel"]]
    launches = frame[frame["cat"].isin([symbols.sym_index.get(name) for name in ("cuda_runtime", "cuda_driver")])]
    launched = rows["correlation"].isin(launches["correlation"]).sum()
    return {"kernels": len(rows), "launched": int(launched), "ns": round(rows["dur"].sum() * 1000)}


WAYS = {"dsv4bench": read_ours, "json+pandas": read_plainly}
if importlib.util.find_spec("hta"):
    WAYS["hta"] = read_by_hta


def measure(way: str, path: Path) -> None:
    """Print what one way takes on one file, in this process."""
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    start, start_cpu = time.perf_counter(), time.process_time()
    answer = WAYS[way](path)
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{way:12} {path.name:14} {seconds:6.2f} s (CPU {cpu:5.2f} s)", end="  ")
    print(f"peak {peak_mb:5} MB (imports {before_mb} MB)  {answer}")


def main(kernels: int) -> None:
    """Write the files and measure every way on each, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        plain, packed = Path(folder) / "trace.json", Path(folder) / "trace.json.gz"
        write_trace(plain, kernels)
        with plain.open("rb") as file, gzip.open(packed, "wb", compresslevel=6) as stream:
            shutil.copyfileobj(file, stream)  # in pieces: a child's peak begins with that of its parent
        print(f"{plain.stat().st_size / 1e6:.0f} MB, gzipped {packed.stat().st_size / 1e6:.0f} MB, {kernels} kernels")
        for path in (plain, packed):
            for way in WAYS:
                subprocess.run([sys.executable, __file__, way, str(path)], check=True)


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1] in WAYS:
        measure(sys.argv[1], Path(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else KERNELS)
