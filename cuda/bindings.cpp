// The Python module: addresses as integers, no array library. Its caller (memory_manager/layouts) has checked that what
// the numbers name exists and is large enough.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>
#include <utility>

#include "conversion.h"

namespace py = pybind11;

namespace omniflow {
namespace {

// A flat C-ordered array; no other dtype is converted.
template <typename Number>
using Numbers = py::array_t<Number, py::array::c_style>;

void require(bool holds, const char* rule) {
  if (!holds) throw py::value_error(rule);
}

Conversion make(const Numbers<int64_t>& stacks, int32_t layers, int32_t kinds, int32_t heads, int32_t first_head,
                int64_t head_bytes, int32_t block_tokens, const Numbers<int64_t>& stack_strides, int32_t partition_heads,
                const Numbers<int64_t>& page_strides) {
  require(layers > 0 && kinds > 0 && heads > 0 && first_head >= 0 && head_bytes > 0, "sizes must be positive");
  require(block_tokens > 0 && partition_heads > 0, "blocks and partitions must not be empty");
  require(kinds <= 16, "a page has at most 16 kinds");
  require(stacks.size() == static_cast<py::ssize_t>(layers) * kinds, "one stack for every layer and kind is needed");
  require(stack_strides.size() == 3, "a stack has three strides: block, token, head");
  require(page_strides.size() == 5, "a page has five strides: layer, kind, partition, token, head");
  Geometry geometry{};
  geometry.layers = layers;
  geometry.kinds = kinds;
  geometry.heads = heads;
  geometry.first_head = first_head;
  geometry.head_bytes = head_bytes;
  geometry.block_tokens = block_tokens;
  geometry.partition_heads = partition_heads;
  geometry.stack_block = stack_strides.data()[0];
  geometry.stack_token = stack_strides.data()[1];
  geometry.stack_head = stack_strides.data()[2];
  geometry.page_layer = page_strides.data()[0];
  geometry.page_kind = page_strides.data()[1];
  geometry.page_partition = page_strides.data()[2];
  geometry.page_token = page_strides.data()[3];
  geometry.page_head = page_strides.data()[4];
  std::vector<char*> addresses;
  for (py::ssize_t index = 0; index < stacks.size(); ++index) {
    addresses.push_back(reinterpret_cast<char*>(stacks.data()[index]));
  }
  return {geometry, std::move(addresses)};
}

std::vector<PagePart> parts_of(const Conversion& conversion, const Numbers<int64_t>& pages, const Numbers<int32_t>& tokens,
                               const Numbers<int32_t>& blocks) {
  require(tokens.size() == 2 * pages.size(), "every page needs its first and its end token");
  std::vector<PagePart> parts;
  parts.reserve(pages.size());
  int64_t table = 0;
  for (py::ssize_t index = 0; index < pages.size(); ++index) {
    const Tokens taken{tokens.data()[2 * index], tokens.data()[2 * index + 1]};
    require(0 <= taken.first && taken.first < taken.stop, "the tokens of a page must not be empty");
    const int32_t count = blocks_of(conversion.geometry, taken);
    require(table + count <= blocks.size(), "the block table is too short");
    parts.push_back({reinterpret_cast<char*>(pages.data()[index]), taken, blocks.data() + table});
    table += count;
  }
  require(table == blocks.size(), "the block table is too long");
  return parts;
}

}  // namespace
}  // namespace omniflow

PYBIND11_MODULE(_conversion, module) {
  using namespace omniflow;
  module.attr("__doc__") = "Copies KV pages between block stacks and storage; see memory_manager/layouts.";
#ifdef OMNIFLOW_WITH_CUDA
  module.attr("HAS_KERNELS") = true;
#else
  module.attr("HAS_KERNELS") = false;
#endif
  module.def("device_count", &device_count, py::call_guard<py::gil_scoped_release>());
  module.def("device_address", &device_address, py::arg("address"));

  py::enum_<Direction>(module, "Direction").value("STORE", Direction::kStore).value("LOAD", Direction::kLoad);

  const auto pages = py::arg("pages").noconvert();
  const auto tokens = py::arg("tokens").noconvert();
  const auto blocks = py::arg("blocks").noconvert();
  py::class_<Conversion>(module, "Conversion")
      .def(py::init(&make), py::kw_only(), py::arg("stacks").noconvert(), py::arg("layers"), py::arg("kinds"),
           py::arg("heads"), py::arg("first_head"), py::arg("head_bytes"), py::arg("block_tokens"),
           py::arg("stack_strides").noconvert(), py::arg("partition_heads"), py::arg("page_strides").noconvert())
      .def(
          "on_host",
          [](const Conversion& self, Direction direction, const Numbers<int64_t>& pages, const Numbers<int32_t>& tokens,
             const Numbers<int32_t>& blocks, int threads) {
            const auto parts = parts_of(self, pages, tokens, blocks);
            const py::gil_scoped_release release;
            convert_on_host(self, direction, parts, threads);
          },
          py::arg("direction"), pages, tokens, blocks, py::arg("threads"))
      .def(
          "on_device",
          [](const Conversion& self, Direction direction, const Numbers<int64_t>& pages, const Numbers<int32_t>& tokens,
             const Numbers<int32_t>& blocks, int device, std::uintptr_t stream) {
            const auto parts = parts_of(self, pages, tokens, blocks);
            const py::gil_scoped_release release;
            convert_on_device(self, direction, parts, device, stream);
          },
          py::arg("direction"), pages, tokens, blocks, py::arg("device"), py::arg("stream"))
      .def(
          "as_kernel",
          [](const Conversion& self, Direction direction, const Numbers<int64_t>& pages, const Numbers<int32_t>& tokens,
             const Numbers<int32_t>& blocks) {
            const auto parts = parts_of(self, pages, tokens, blocks);
            const py::gil_scoped_release release;
            convert_as_kernel(self, direction, parts);
          },
          py::arg("direction"), pages, tokens, blocks);
}
