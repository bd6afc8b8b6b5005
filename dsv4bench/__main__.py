"""`python -m dsv4bench` is the command `dsv4bench`."""

from dsv4bench.cli import main

if __name__ == "__main__":
    main()
