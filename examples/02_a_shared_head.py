"""The workspace of sparse prefill remembers whose compressed rows its head holds. New: SparsePrefillKVBuffer."""

from dsv4bench.workloads.kv_buffer import SparsePrefillKVBuffer

buffer = SparsePrefillKVBuffer("cpu")
source_2, source_8 = (
    (0x1000, 0x2000, 300),
    (0x3000, 0x2000, 300),
)  # (cache pointer, gather ids pointer, compressed rows)

for layer, source in ((2, source_2), (3, source_2), (8, source_8)):
    rows, filled = buffer.get_with_head(427, source)
    print(f"layer {layer}: {'reuse the head' if filled else 'dequantise the head'} of {tuple(rows.shape)}")

buffer.forget_head()  # a new forward has rewritten the caches
print("next forward, layer 8:", buffer.get_with_head(427, source_8)[1])
