"""What reading a large store costs: seconds of the first reading, and of the next one from the cache.

Usage: python benchmarks/store_reading.py [records]. Writes records like those of the committed run h200-default into a
hundred files in a temporary folder (as many times as it takes) and reads each folder in a process of its own.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

COMMITTED = Path(__file__).parents[1] / "results" / "h200-default" / "records.jsonl"
FILES = 100
READ = """
import sys, time
from pathlib import Path
from dsv4bench.results import frame_cache
frame_cache.SETTLED_NS = 0
start, busy = time.perf_counter(), time.process_time()
found = frame_cache.read_frame([Path(sys.argv[1])], Path(sys.argv[2])).frame
seconds = f"{time.perf_counter() - start:.2f} s, {time.process_time() - busy:.2f} s of a processor"
print(f"{sys.argv[3]}: {len(found)} records in {seconds}")
"""


def main(count: int) -> None:
    """Write the store, read it twice and print both times."""
    lines = COMMITTED.read_bytes().splitlines(keepends=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "runs"
        folder.mkdir()
        for place in range(FILES):
            size = count // FILES + (place < count % FILES)
            (folder / f"{place}.jsonl").write_bytes(b"".join(lines[one % len(lines)] for one in range(size)))
        megabytes = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
        print(f"{FILES} files, {megabytes:.0f} MB")
        for turn in ("first reading", "from the cache"):
            subprocess.run([sys.executable, "-c", READ, str(folder), str(Path(name) / "cache"), turn], check=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
