"""dsv4bench: the before/after laboratory for DeepSeek-V4 and V4.1 attention kernels."""

__version__ = "0.1.0"
