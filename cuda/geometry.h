// Where the bytes of a KV page lie on both sides of a conversion: index arithmetic shared by the CPU path and the kernel.
//
// Compute side: one stack of blocks for every layer and kind (k and v; one kind for a latent cache), addressed as
//     stack[block][token in block][head][byte]      any strides, the bytes of one head contiguous
// Storage side: one page, addressed as
//     page[layer][kind][partition][token][head in partition][byte]      any strides, likewise
// Token t of a page lies in the block that a table names, at t % block_tokens.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define OMNIFLOW_BOTH __host__ __device__ __forceinline__
#else
#define OMNIFLOW_BOTH inline
#endif

namespace omniflow {

struct Geometry {
  // What is converted: all layers and kinds, and `heads` heads that start at storage head `first_head`. The stacks'
  // addresses point to the first of those heads.
  int32_t layers, kinds, heads, first_head;
  int64_t head_bytes;
  int32_t block_tokens;
  int64_t stack_block, stack_token, stack_head;  // strides, in bytes
  int32_t partition_heads;
  int64_t page_layer, page_kind, page_partition, page_token, page_head;
};

// The largest pieces that are contiguous on both sides. Heads of one partition join into a segment, and the tokens of
// one block into a group, where the strides of both sides allow it.
struct Joins {
  bool heads, tokens;
};

OMNIFLOW_BOTH int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }
OMNIFLOW_BOTH int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

OMNIFLOW_BOTH int32_t segments(const Geometry& g, const Joins& joins) {
  if (!joins.heads) return g.heads;
  return (g.first_head + g.heads - 1) / g.partition_heads - g.first_head / g.partition_heads + 1;
}

// Stacks that one row needs: everything of a (layer, kind, segment), for every token.
struct Row {
  int32_t stack;        // layer * kinds + kind
  int64_t stack_bytes;  // from the stack's address
  int64_t page_bytes;   // from the page's address
  int64_t token_bytes;  // of one token
};

OMNIFLOW_BOTH int32_t rows(const Geometry& g, const Joins& joins) { return g.layers * g.kinds * segments(g, joins); }

OMNIFLOW_BOTH Row row_at(const Geometry& g, const Joins& joins, int32_t index) {
  const int32_t per_stack = segments(g, joins);
  const int32_t stack = index / per_stack, segment = index % per_stack;
  int32_t head = g.first_head + segment, count = 1;
  if (joins.heads) {
    const int32_t start = (g.first_head / g.partition_heads + segment) * g.partition_heads;
    head = larger(start, g.first_head);
    count = smaller(start + g.partition_heads, g.first_head + g.heads) - head;
  }
  return {stack, (head - g.first_head) * g.stack_head,
          (stack / g.kinds) * g.page_layer + (stack % g.kinds) * g.page_kind +
              (head / g.partition_heads) * g.page_partition + (head % g.partition_heads) * g.page_head,
          count * g.head_bytes};
}

// Tokens [first, stop) of a page, first < stop.
struct Tokens {
  int32_t first, stop;
};

// Blocks that those tokens touch, and so entries of their block table.
OMNIFLOW_BOTH int32_t blocks_of(const Geometry& g, Tokens tokens) {
  return (tokens.stop - 1) / g.block_tokens - tokens.first / g.block_tokens + 1;
}

OMNIFLOW_BOTH int32_t groups(const Geometry& g, const Joins& joins, Tokens tokens) {
  return joins.tokens ? blocks_of(g, tokens) : tokens.stop - tokens.first;
}

// A contiguous piece on both sides, relative to the row's addresses.
struct Run {
  int64_t stack_bytes, page_bytes, bytes;
};

// Group `index` of a row; `blocks` is the block table of `tokens`.
OMNIFLOW_BOTH Run run_at(const Geometry& g, const Joins& joins, const Row& row, Tokens tokens, const int32_t* blocks,
                         int32_t index) {
  const int32_t first_block = tokens.first / g.block_tokens;
  int32_t token = tokens.first + index, count = 1;
  if (joins.tokens) {
    const int32_t start = (first_block + index) * g.block_tokens;
    token = larger(start, tokens.first);
    count = smaller(start + g.block_tokens, tokens.stop) - token;
  }
  const int32_t block = token / g.block_tokens;
  return {row.stack_bytes + blocks[block - first_block] * g.stack_block + (token - block * g.block_tokens) * g.stack_token,
          row.page_bytes + token * g.page_token, count * row.token_bytes};
}

// Upper bound of a run's size.
OMNIFLOW_BOTH int64_t largest_run(const Geometry& g, const Joins& joins) {
  const int64_t heads = joins.heads ? smaller(g.heads, g.partition_heads) : 1;
  return heads * g.head_bytes * (joins.tokens ? g.block_tokens : 1);
}

inline Joins joins_of(const Geometry& g) {
  Joins joins{g.stack_head == g.head_bytes && g.page_head == g.head_bytes, false};
  const int64_t row = largest_run(g, joins);
  const bool even = !joins.heads || g.heads % g.partition_heads == 0 || g.heads < g.partition_heads;
  const bool aligned = !joins.heads || g.first_head % g.partition_heads == 0 || segments(g, joins) == 1;
  joins.tokens = even && aligned && g.stack_token == row && g.page_token == row;
  return joins;
}

}  // namespace omniflow
