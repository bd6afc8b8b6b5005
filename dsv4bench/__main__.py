"""`python -m dsv4bench` is the command `dsv4bench`."""

from dsv4bench.cli import run

if __name__ == "__main__":
    run()
