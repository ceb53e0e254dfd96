#include <gtest/gtest.h>

#include "core/containers/dcp/metadata/joined_metadata.hpp"
#include "tests/support/dcp_metadata.hpp"
#include "tests/support/dcp_pickle.hpp"
#include "tests/support/expect_refused.hpp"

namespace reshard {
namespace {

using namespace std::string_literals;
using dcp::Metadata;
using raw::file_of;
using raw::text;

std::vector<Index> vector_of(std::span<Index const> list) { return {list.begin(), list.end()}; }

/// Expects the one tensor of raw::Parts.
void expect_the_example(Metadata const& metadata, std::string const& what = "") {
  ASSERT_EQ(metadata.tensors.size(), 1U) << what;
  StoredTensor const& tensor = metadata.tensors[0];
  EXPECT_EQ(tensor.name, "w") << what;
  EXPECT_EQ(tensor.dtype, DType::bf16) << what;
  EXPECT_EQ(tensor.shape, (std::vector<Index>{2, 3})) << what;
  ASSERT_EQ(tensor.chunk_count, 1U) << what;
  StoredChunk const& chunk = metadata.chunks_of(tensor)[0];
  EXPECT_EQ(vector_of(metadata.offsets(chunk)), (std::vector<Index>{0, 0})) << what;
  EXPECT_EQ(vector_of(metadata.sizes(chunk)), (std::vector<Index>{2, 3})) << what;
  EXPECT_EQ(chunk.item, (ItemPlace{.file = 0, .offset_bytes = 0, .size_bytes = 1577})) << what;
  EXPECT_EQ(metadata.files, std::vector<std::string>{"__0_0.distcp"}) << what;
}

TEST(IndexLists, EqualListsHaveOneNumber) {
  IndexLists lists;
  std::vector<Index> const a = {1, 2};
  std::vector<Index> const b = {1, 2, 0};
  auto const id = lists.add(a);
  EXPECT_NE(lists.add(b), id);
  EXPECT_EQ(lists.add({}), 2U);
  EXPECT_EQ(lists.add(lists[id]), id);
  EXPECT_EQ(lists.size(), 3U);
  EXPECT_EQ(vector_of(lists[1]), b);
  EXPECT_TRUE(lists[2].empty());
}

TEST(IndexLists, AgreesWithAMapOfManyLists) {
  IndexLists lists;
  for (int round = 0; round < 2; ++round)
    for (Index i = 0; i < 20000; ++i)
      ASSERT_EQ(lists.add(std::vector<Index>{i / 100, -i, i % 3}), static_cast<IndexLists::Id>(i));
  EXPECT_EQ(lists.size(), 20000U);
  for (Index i = 0; i < 20000; ++i)
    ASSERT_EQ(vector_of(lists[static_cast<IndexLists::Id>(i)]),
              (std::vector<Index>{i / 100, -i, i % 3}));
}

TEST(JoinMetadata, NumbersFilesAndChunksBehindTheOthers) {
  Metadata both = raw::read(file_of(raw::Parts{}));
  Metadata more;
  more.files = {"__1_0.distcp"};
  more.add_whole(SharedText("v"), DType::f32, {4},
                 {.file = 0, .offset_bytes = 7, .size_bytes = 16});
  more.objects.push_back({"step", {.file = 0, .offset_bytes = 30, .size_bytes = 5}});
  dcp::join_metadata(both, more, "more");
  EXPECT_EQ(both.first_joined, 1U);
  EXPECT_EQ(both.files, (std::vector<std::string>{"__0_0.distcp", "__1_0.distcp"}));
  ASSERT_EQ(both.tensors.size(), 2U);
  StoredChunk const chunk = both.chunks_of(both.tensors[1]).front();
  EXPECT_EQ(chunk.item, (ItemPlace{.file = 1, .offset_bytes = 7, .size_bytes = 16}));
  EXPECT_EQ(vector_of(both.sizes(chunk)), std::vector<Index>{4});
  ASSERT_EQ(both.objects.size(), 1U);
  EXPECT_EQ(both.objects[0].item.file, 1U);
  test::expect_refused(ErrorKind::source, "more: has the key 'v'",
                       [&] { dcp::join_metadata(both, more, "more"); });
}

TEST(ReadMetadata, ReadsOneTensor) {
  Metadata const metadata = raw::read(file_of(raw::Parts{}));
  expect_the_example(metadata);
  ASSERT_TRUE(metadata.planner_data);
  ASSERT_EQ(metadata.planner_data->size(), 1U);
  EXPECT_EQ(metadata.planner_data->front().first, "w");
  EXPECT_EQ(metadata.planner_data->front().second, dcp::Path{"w"});
  EXPECT_TRUE(metadata.objects.empty());
  EXPECT_TRUE(metadata.flattened.empty());
}

TEST(ReadMetadata, ReadsEveryFormThatAWriterUses) {
  struct Form {
    char const* name;
    raw::Parts parts;
  };
  std::string const values = raw::property_values(raw::torch_dtype("bfloat16"));
  std::string const longer = values.substr(0, values.size() - 1) + "Nt";
  std::string const none_offset = raw::object(
      raw::metadata_module, "MetadataIndex",
      raw::dict({text("fqn"), text("w"), text("index"), "N", text("offset"), raw::size({0, 0})}));
  std::string const without_index =
      raw::object(raw::metadata_module, "MetadataIndex",
                  raw::dict({text("offset"), raw::size({0, 0}), text("fqn"), text("w")}));
  std::string const place_state = "}(" + text("relative_path") + text("__0_0.distcp") +
                                  text("offset") + "K\1" + text("offset") + raw::number(0);
  auto const place = [&](std::string const& more) {
    return raw::object(raw::filesystem_module, "_StorageInfo",
                       place_state + text("length") + raw::number(1577) + more + "u");
  };
  std::string const path =
      raw::call(raw::global("pathlib", "PosixPath"), raw::tuple({text("/"), text("a")}));
  std::string const new_path =
      raw::call(raw::global("pathlib._local", "PosixPath"), raw::tuple({text("/")}));
  auto const meta = [&](std::string const& id) {
    return raw::object(raw::metadata_module, "StorageMeta",
                       raw::dict({text("checkpoint_id"), id, text("save_id"), text("x"),
                                  text("load_id"), "N", text("modules"), "]"}));
  };
  std::vector<Form> const forms = {
      {"PlainTuples",
       {.size = raw::numbers({2, 3}),
        .chunks = raw::list({raw::chunk(raw::numbers({0, 0}), raw::numbers({2, 3}))})}},
      {"Lists",
       {.chunks = raw::list({raw::chunk(raw::list({"K\0"s, "K\0"s}), raw::list({"K\2", "K\3"}))})}},
      {"SizeOfAList",
       {.size = raw::call(raw::global("torch", "Size"), raw::list({"K\2", "K\3"}) + "\x85")}},
      {"OldTensorProperties",
       {.properties = raw::properties(values, "torch.distributed._shard.sharded_tensor.metadata")}},
      {"LongerTensorProperties", {.properties = raw::properties(longer)}},
      {"TwoAppends", {.chunks = "]" + raw::chunk(raw::size({0, 0}), raw::size({2, 3})) + "a"}},
      {"IndexNone", {.index = none_offset}},
      {"IndexMissing", {.index = without_index}},
      {"RepeatedKeyOfAState", {.place = place("")}},
      {"NoTransforms", {.place = place(text("transform_descriptors") + "N")}},
      {"EmptyTransforms", {.place = place(text("transform_descriptors") + "]")}},
      {"UnknownAttribute", {.place = place(text("checksum") + text("crc"))}},
      {"PathObject",
       {.more_attributes = {text("storage_meta"), meta(path), text("version"), text("1.0.0")}}},
      {"PathObjectOfPython313", {.more_attributes = {text("storage_meta"), meta(new_path)}}},
      {"NoMoreAttributes", {.more_attributes = {}}},
      {"UnknownClasses",
       {.more_attributes = {text("extra"), raw::object("a.b", "C",
                                                       raw::dict({text("x"), raw::made(raw::global(
                                                                                 "d", "E"))}))}}},
      {"EveryOtherValue",
       {.more_attributes = {text("extra"),
                            raw::tuple({"\x88", "\x8f(K\1K\2\x90", "(K\1\x91", "G\1\2\3\4\5\6\7\1",
                                        "C\1z", "B\1\0\0\0z"s, "\x8e\1\0\0\0\0\0\0\0z"s,
                                        "\x96\1\0\0\0\0\0\0\0z"s, "\x8a\0"s,
                                        "\x8b\x09\0\0\0"s + std::string(9, '\x7f'),
                                        "\x8d\1\0\0\0\0\0\0\0z"s})}}},
      {"KeywordObject",
       {.more_attributes = {text("extra"),
                            raw::global("a", "B") + ")" + raw::dict({text("x"), "N"}) + "\x92"}}},
      {"PoppedValues", {.size = "NK\1(N100" + raw::size({2, 3})}},
  };
  for (Form const& form : forms) {
    SCOPED_TRACE(form.name);
    ASSERT_NO_THROW(expect_the_example(raw::read(file_of(form.parts)), form.name))
        << raw::error_of(file_of(form.parts))->what();
  }
}

TEST(ReadMetadata, FramesAndOldGlobalsAreFine) {
  std::string const body = raw::object(raw::metadata_module, "Metadata", raw::attributes({}));
  std::string const frame =
      "\x95\xff\xff\xff\xff\xff\xff\xff\x7f"s;  // lies about its length, which nothing depends on
  expect_the_example(raw::read("\x80\x05" + frame + body + "."));
  std::string const old_class = "ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81";
  expect_the_example(raw::read("\x80\x02" + old_class + raw::attributes({}) + "b."));
  std::string const mcore =
      "cmegatron.core.dist_checkpointing.strategies.torch\nMCoreMetadata\n)\x81";
  expect_the_example(raw::read("\x80\x03" + mcore + raw::attributes({}) + "b."));
}

TEST(ReadMetadata, TheMemoReturnsWhatWasStored) {
  std::string const offsets = raw::size({0, 0});
  raw::Parts parts{.size = raw::size({2, 3}) + "\x94"};  // number 0
  parts.chunks =
      raw::list({raw::chunk(offsets + "r\x01\1\0\0"s, "h\0"s)});  // number 257, out of turn
  parts.index = raw::index("w", "j\x01\1\0\0"s);
  parts.place = raw::place("__0_0.distcp", 0, 1577) + "q\xffh\xff" + "0";
  expect_the_example(raw::read(file_of(parts)));
}

TEST(ReadMetadata, MemoizeCountsTheStoredValues) {
  // Numbers 0 and 5 are taken, so the next MEMOIZE takes 2, as in Python.
  raw::Parts parts{.size = raw::size({2, 3}) + "\x94" + raw::size({9, 9}) + "q\x05" + "\x30" +
                           raw::size({4, 4}) + "\x94\x30"};
  parts.chunks = raw::list({raw::chunk(raw::size({0, 0}), "h\0"s)});
  expect_the_example(raw::read(file_of(parts)));
  parts.chunks = raw::list({raw::chunk(raw::size({0, 0}), "h\2")});
  EXPECT_NE(std::string(raw::error_of(file_of(parts)).value().what()).find("sizes [4, 4]"),
            std::string::npos);
}

TEST(ReadMetadata, DtypesAndTheirAliases) {
  struct Named {
    char const* torch;
    DType dtype;
  };
  for (Named const& named :
       {Named{"half", DType::f16}, Named{"float", DType::f32}, Named{"double", DType::f64},
        Named{"short", DType::i16}, Named{"int", DType::i32}, Named{"long", DType::i64},
        Named{"cfloat", DType::c64}, Named{"cdouble", DType::c128}, Named{"complex32", DType::c32},
        Named{"uint64", DType::u64}, Named{"float8_e8m0fnu", DType::f8_e8m0},
        Named{"float4_e2m1fn_x2", DType::f4_x2}, Named{"bool", DType::boolean}}) {
    Metadata const metadata = raw::read(file_of(raw::Parts{
        .properties = raw::properties(raw::property_values(raw::torch_dtype(named.torch)))}));
    EXPECT_EQ(metadata.tensors[0].dtype, named.dtype) << named.torch;
  }
}

TEST(ReadMetadata, ObjectsHaveItemsWithoutOffset) {
  raw::Parts parts;
  parts.more_entries = {text("o"), raw::bytes()};
  parts.more_places = {raw::index("o", std::nullopt), raw::place("sub/dir/x.distcp", 7, 9)};
  Metadata const metadata = raw::read(file_of(parts));
  EXPECT_EQ(metadata.tensors.size(), 1U);
  EXPECT_EQ(metadata.chunks[0].item.file, 0U);
  ASSERT_EQ(metadata.objects.size(), 1U);
  EXPECT_EQ(metadata.objects[0].name, "o");
  EXPECT_EQ(metadata.objects[0].item, (ItemPlace{.file = 1, .offset_bytes = 7, .size_bytes = 9}));
  EXPECT_EQ(metadata.files[1], "sub/dir/x.distcp");
}

TEST(ReadMetadata, ARankZeroTensorHasOneChunk) {
  raw::Parts parts{.size = raw::size({}),
                   .chunks = raw::list({raw::chunk(raw::size({}), raw::size({}))}),
                   .index = raw::index("w", raw::size({}))};
  Metadata const metadata = raw::read(file_of(parts));
  EXPECT_TRUE(metadata.tensors[0].shape.empty());
  ASSERT_EQ(metadata.tensors[0].chunk_count, 1U);
  EXPECT_TRUE(metadata.sizes(metadata.chunks[0]).empty());
}

TEST(ReadMetadata, ChunksWithoutElementsAreLeftOutBesideOthers) {
  std::string const real = raw::chunk(raw::size({0, 0}), raw::size({2, 3}));
  std::string const empty = raw::chunk(raw::size({2, 0}), raw::size({0, 3}));  // without an item
  expect_the_example(raw::read(file_of(raw::Parts{.chunks = raw::list({empty, real, empty})})));
}

TEST(ReadMetadata, ATensorWithoutElementsKeepsOneChunk) {
  std::string const empty = raw::chunk(raw::size({0, 0}), raw::size({0, 3}));
  Metadata const metadata = raw::read(
      file_of(raw::Parts{.size = raw::size({0, 3}), .chunks = raw::list({empty, empty})}));
  EXPECT_EQ(metadata.tensors[0].chunk_count, 1U);
  EXPECT_EQ(metadata.chunks.size(), 1U);
}

TEST(ReadMetadata, TheLastOfEqualItemsCounts) {
  raw::Parts parts{.place = raw::place("old", 1, 2)};
  parts.more_places = {raw::index("w", raw::size({0, 0})), raw::place("__0_0.distcp", 0, 1577)};
  parts.more_places.insert(parts.more_places.end(),
                           {raw::index("not a key", std::nullopt), raw::place("unused", 0, 1)});
  expect_the_example(raw::read(file_of(parts)));
}

TEST(ReadMetadata, PlannerDataMayBeNoneOrHaveIntegers) {
  EXPECT_FALSE(raw::read(file_of(raw::Parts{.planner_data = "N"})).planner_data);
  EXPECT_EQ(raw::read(file_of(raw::Parts{.planner_data = "}"})).planner_data->size(), 0U);
  std::string const paths =
      raw::dict({text("w"), raw::tuple({text("a"), "K\1", text("b"), raw::number(-5)}), text("x"),
                 raw::tuple({"K\7"}), text("y"), ")"});
  auto const planner = raw::read(file_of(raw::Parts{.planner_data = paths})).planner_data.value();
  ASSERT_EQ(planner.size(), 3U);
  EXPECT_EQ(planner[0].second, (dcp::Path{"a", 1, "b", -5}));
  EXPECT_EQ(planner[1].second, dcp::Path{7});
  EXPECT_EQ(planner[2].second, dcp::Path{});
}

TEST(ReadMetadata, FlattenedTensorsHaveTheirModelShape) {
  std::string const shape = raw::dict(
      {text("nd_reformulated_orig_global_shape"), raw::numbers({4, 5, 6}), text("other"), "N"});
  raw::Parts parts{
      .more_attributes = {text("mcore_data"), raw::dict({text("w"), shape, text("x"), "}"})}};
  auto const flattened = raw::read(file_of(parts)).flattened;
  ASSERT_EQ(flattened.size(), 1U);
  EXPECT_EQ(flattened[0].first, "w");
  EXPECT_EQ(flattened[0].second, (std::vector<Index>{4, 5, 6}));
}

TEST(ReadMetadata, PlansBehindEverythingElseAreNotRead) {
  std::string const shape =
      raw::dict({text("nd_reformulated_orig_global_shape"), raw::numbers({6})});
  raw::Parts parts{.more_attributes = {text("mcore_data"), raw::dict({text("w"), shape}),
                                       text("all_local_plans"), "\x01 no opcode at all"}};
  std::string const bytes = file_of(parts);
  Metadata const metadata = raw::read(bytes);
  expect_the_example(metadata);
  EXPECT_EQ(metadata.flattened.size(), 1U);
  EXPECT_NE(std::string(raw::error_of(bytes.substr(0, bytes.size() - 1)).value().what())
                .find("truncated"),
            std::string::npos);
}

TEST(ReadMetadata, PlansInFrontAreReadOver) {
  std::string const item =
      raw::object("torch.distributed.checkpoint.planner", "WriteItem",
                  raw::dict({text("index"), raw::index("w", raw::size({0, 0}))}));
  std::string const plans =
      raw::list({raw::object("torch.distributed.checkpoint.planner", "SavePlan",
                             raw::dict({text("items"), raw::list({item})}))});
  std::string const state = raw::attributes({});
  std::string const front = "}(" + text("all_local_plans") + plans + state.substr(2);
  expect_the_example(raw::read(file_of(raw::object(raw::metadata_module, "Metadata", front))));
}

TEST(ReadMetadata, NumbersAboveFourGibibytes) {
  Index const far = (Index{1} << 62) + 12345;
  Metadata const metadata =
      raw::read(file_of(raw::Parts{.place = raw::place("__0_0.distcp", far, Index{1} << 40)}));
  EXPECT_EQ(metadata.chunks[0].item.offset_bytes, static_cast<std::uint64_t>(far));
  EXPECT_EQ(metadata.chunks[0].item.size_bytes, std::uint64_t{1} << 40);
}

TEST(ReadMetadata, StringsAcrossTheEndOfTheBuffer) {
  // Names of many lengths over several buffers, so that values of every kind lie across its end.
  Metadata made;
  made.files = {std::string(300, 'f')};
  for (int i = 0; i < 3000; ++i) {
    add_tensor(made, fmt::format("{}{}", std::string(static_cast<std::size_t>(i % 701), 'n'), i),
               DType::f32, {Index{1} << (i % 40), 1});
    add_chunk(made, {0, 0}, {Index{1} << (i % 40), 1},
              {.file = 0, .offset_bytes = static_cast<std::uint64_t>(i) << 33, .size_bytes = 77});
  }
  for (auto const style : {dcp::MetadataStyle::plain, dcp::MetadataStyle::compact}) {
    std::string const bytes = dcp::write_metadata(made, style);
    ASSERT_GT(bytes.size(), std::size_t{1} << 20);
    EXPECT_EQ(dcp::write_metadata(raw::read(bytes), style), bytes);
  }
}

}  // namespace
}  // namespace reshard
