#include "core/containers/dcp/item.hpp"
#include "tests/bounds/bounds.hpp"
#include "tests/core/containers/dcp/item_files.hpp"
#include "tests/support/dcp_pickle.hpp"

namespace reshard {
namespace {

using namespace std::string_literals;
using raw::Parts;
using raw::text;

void read(std::string const& bytes) { static_cast<void>(raw::read(bytes)); }

TEST(MetadataBounds, OpcodesThatMakeMuchOfLittle) {
  expect_refused(bounded("8M lists", "\x80\x04" + std::string(8'000'000, ']'), read), "damaged");
  expect_refused(
      bounded("8M tuples in each other", "\x80\x04N" + std::string(8'000'000, '\x85') + ".", read),
      "holds a tuple");
  expect_refused(
      bounded("8M memo entries", "\x80\x04N" + std::string(8'000'000, '\x94') + ".", read),
      "memo index");
  expect_refused(bounded("8M marks", "\x80\x04" + std::string(8'000'000, '('), read), "");
  expect_refused(bounded("memo entries far apart",
                         "\x80\x04N" + repeated("r\xff\xff\0\0r\xff\xff\1\0"s, 800'000), read),
                 "");
}

TEST(MetadataBounds, WhatIsSharedIsNotCopiedWithoutEnd) {
  auto const shared = [](std::string const& first, std::size_t keys) {
    std::string out = "}(" + text("first") + first + "\x94";  // memo 0
    for (std::size_t i = 0; i < keys; ++i) out += text(fmt::format("k{}", i)) + "h\0"s;
    return out + "u";
  };
  std::string const long_text(200'000, 'x');
  std::string const texts = raw::tuple(std::vector<std::string>(64, text(long_text)));
  expect_refused(bounded("a long path for 10k keys",
                         raw::file_of(Parts{.planner_data = shared(texts, 10'000)}), read),
                 "far more values than it has bytes");
  std::string const steps = raw::tuple(std::vector<std::string>(100'000, text("s")));
  expect_refused(bounded("a path of 100k steps",
                         raw::file_of(Parts{.planner_data = shared(steps, 100'000)}), read),
                 "100000 steps");
  std::string const dimensions = raw::dict(
      {text("nd_reformulated_orig_global_shape"), raw::numbers(std::vector<Index>(100'000, 1))});
  expect_refused(
      bounded(
          "a shape of 100k dimensions",
          raw::file_of(Parts{.more_attributes = {text("mcore_data"), shared(dimensions, 100'000)}}),
          read),
      "100000 dimensions");
  std::string const facts = raw::dict(std::vector<std::string>(200'000, "N"));
  expect_refused(
      bounded("100k facts of 100k keys",
              raw::file_of(Parts{.more_attributes = {text("mcore_data"), shared(facts, 100'000)}}),
              read),
      "far more values than it has bytes");
}

TEST(MetadataBounds, ManyTensorsAndChunks) {
  std::vector<std::string> entries, places;
  std::string const tensor = Parts{}.properties;
  for (std::size_t i = 0; i < 10'000; ++i) {
    std::string const name = fmt::format("w{}", i);
    entries.insert(
        entries.end(),
        {text(name), raw::tensor(tensor, raw::size({2, 3}),
                                 raw::list({raw::chunk(raw::size({0, 0}), raw::size({2, 3}))}))});
    places.insert(places.end(),
                  {raw::index(name, raw::size({0, 0})), raw::place("__0_0.distcp", 0, 10)});
  }
  EXPECT_EQ(bounded("10k tensors, every text spelled out",
                    raw::file_of(Parts{.more_entries = entries, .more_places = places}), read),
            "");
}

TEST(ItemBounds, AnItemWhoseArchiveIsHostile) {
  auto const read_item = [](std::string const& bytes) {
    static MemoryFile const memory;
    std::vector<Index> const shape = {2, 2};
    static_cast<void>(
        dcp::read_tensor_item(memory.holding(bytes), {0, 0, bytes.size()}, DType::f32, shape, "w"));
  };
  expect_refused(bounded("an item with a pickle of 8 MB",
                         dcp::bytes_of(dcp::ItemParts{
                             .pickle = "\x80\x02" + std::string(8'000'000, '('), .payload = ""}),
                         read_item),
                 "");
  expect_refused(
      bounded("an item of 8M memo entries",
              dcp::bytes_of(dcp::ItemParts{
                  .pickle = "\x80\x02N" + std::string(8'000'000, '\x94') + ".", .payload = ""}),
              read_item),
      "");
}

}  // namespace
}  // namespace reshard
