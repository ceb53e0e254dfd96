#include <chrono>

#include <gtest/gtest.h>

#include "tests/support/dcp_metadata.hpp"
#include "tests/support/dcp_pickle.hpp"

namespace reshard {
namespace {

using namespace std::string_literals;
using raw::Parts;
using raw::text;

struct BadFile {
  char const* name;
  std::string bytes;
  char const* says;
};

void expect_refused(std::vector<BadFile> const& files) {
  for (BadFile const& bad : files) {
    auto const begin = std::chrono::steady_clock::now();
    auto const error = raw::error_of(bad.bytes);
    ASSERT_TRUE(error) << bad.name << " was read";
    EXPECT_EQ(error->kind(), ErrorKind::source) << bad.name << ": " << error->what();
    EXPECT_NE(error->sentence().find(bad.says), std::string::npos)
        << bad.name << ": " << error->what();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << bad.name;
  }
}

struct BadParts {
  char const* name;
  Parts parts;
  char const* says;
};

void expect_refused(std::vector<BadParts> const& bad) {
  std::vector<BadFile> files;
  for (BadParts const& each : bad)
    files.push_back({each.name, raw::file_of(each.parts), each.says});
  expect_refused(files);
}

std::string chunks(std::string const& offsets, std::string const& sizes) {
  return raw::list({raw::chunk(offsets, sizes)});
}
std::string place_of(std::string const& path, std::string const& offset,
                     std::string const& length) {
  return raw::object(
      raw::filesystem_module, "_StorageInfo",
      raw::dict({text("relative_path"), path, text("offset"), offset, text("length"), length}));
}
std::string index_of(std::vector<std::string> const& state) {
  return raw::object(raw::metadata_module, "MetadataIndex", raw::dict(state));
}

TEST(MetadataDamage, AFileCutShortIsAnErrorAtEveryLength) {
  std::string const bytes = dcp::write_metadata(banded_metadata(3, 5));
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    auto const error = raw::error_of(std::string_view(bytes).substr(0, length));
    ASSERT_TRUE(error) << length;
    EXPECT_EQ(error->kind(), ErrorKind::source) << length;
  }
  EXPECT_FALSE(raw::error_of(bytes));
}

TEST(MetadataDamage, EveryChangedByteIsReadOrRefused) {
  for (auto const style : {dcp::MetadataStyle::plain, dcp::MetadataStyle::compact}) {
    std::string bytes = dcp::write_metadata(banded_metadata(2, 2), style);
    int refused = 0;
    for (std::size_t at = 0; at < bytes.size(); ++at)
      for (int const change : {0x01, 0x80, 0xff, 0x20}) {
        bytes[at] = static_cast<char>(bytes[at] ^ change);
        if (auto const error = raw::error_of(bytes)) {
          ++refused;
          ASSERT_EQ(error->kind(), ErrorKind::source) << at;
        }
        bytes[at] = static_cast<char>(bytes[at] ^ change);
      }
    EXPECT_GT(refused, static_cast<int>(bytes.size()));
  }
}

TEST(MetadataDamage, RefusesBrokenStreams) {
  expect_refused(std::vector<BadFile>{
      {"Empty", "", "truncated"},
      {"Text", "{\"a\": 1}", "does not begin as a pickle"},
      {"ProtocolOne", "\x80\x01N.", "protocol 1"},
      {"ProtocolSix", "\x80\x06N.", "protocol 6"},
      {"NotMetadata", "\x80\x04N.", "holds None"},
      {"MetadataWithoutState",
       raw::file_of(raw::made(raw::global(raw::metadata_module, "Metadata"))),
       "expected a Metadata with its state"},
      {"AnotherClass", raw::file_of(raw::object("a", "Metadata", raw::attributes({}))),
       "\"a.Metadata\""},
      {"StopOnAnEmptyStack", "\x80\x04.", "the stack is empty"},
      {"ValuesLeftOver", "\x80\x04NN.", "left over"},
      {"MarkLeftOver", "\x80\x04(N.", "left over"},
      {"MoreBytes", raw::file_of(Parts{}) + "N", "1 bytes follow"},
      {"UnknownOpcode", "\x80\x04\xfe.", "opcode 0xfe"},
      {"PersistentId", "\x80\x04NQ.", "opcode 0x51"},
      {"Inst", "\x80\x04(ios\nsystem\n.", "opcode 0x69"},
      {"Obj", "\x80\x04(o.", "opcode 0x6f"},
      {"Extension", "\x80\x04\x82\1.", "opcode 0x82"},
      {"Buffer", "\x80\x05\x97.", "opcode 0x97"},
      {"TextNumber", "\x80\x02I1\n.", "opcode 0x49"},
      {"PopMarkWithoutMark", "\x80\x04N1.", "there is none"},
      {"TupleWithoutMark", "\x80\x04Nt.", "there is none"},
      {"TupleAcrossAMark", "\x80\x04N(N\x86.", "more values than the stack holds"},
      {"AppendToATuple", "\x80\x04)Na.", "appended to a tuple"},
      {"AppendsWithoutList", "\x80\x04(Ne.", "below the mark"},
      {"AppendsAcrossAMark", "\x80\x04]((Ne.", "below the mark"},
      {"SetItemOnAList", "\x80\x04]NNs.", "set on a list"},
      {"OddSetItems", "\x80\x04}(Nu.", "odd number"},
      {"AddItemsToAList", "\x80\x04](N\x90.", "expected a set"},
      {"MemoMiss", "\x80\x04h\0."s, "memo index 0 is read"},
      {"MemoMissFarAway", "\x80\x04j\xff\xff\xff\xff.", "memo index 4294967295 is read"},
      {"MemoIndexAbsurd", "\x80\x04Nr\xff\xff\xff\x7f.", "is too large for the"},
      {"PutOfNothing", "\x80\x04q\0."s, "the stack is empty"},
      {"StringTooLong", "\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffhi.", "more bytes are needed"},
      {"BytesTooLong", "\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fhi.", "more bytes are needed"},
      {"LongTooLong", "\x80\x04\x8b\xff\xff\xff\xff.", "more bytes are needed"},
      {"StringNotUtf8", "\x80\x04\x8c\1\xff.", "is not UTF-8"},
      {"ClassOfInts", "\x80\x04K\1K\2\x93.", "expected strings"},
      {"ClassNameWithoutEnd",
       "\x80\x02"
       "c" +
           std::string(3000, 'm') + "\n",
       "longer than"},
      {"StateOfAnInt", "\x80\x04K\1}b.", "given to an int"},
      {"MetadataTwice",
       raw::file_of(raw::object(raw::metadata_module, "Metadata", raw::attributes({})) + "0" +
                    raw::object(raw::metadata_module, "Metadata", raw::attributes({}))),
       "the file has a second Metadata"},
  });
}

TEST(MetadataDamage, RefusesWrongValuesOfEveryField) {
  std::string const size = raw::size({2, 3});
  std::string const zero = raw::size({0, 0});
  std::string const path = text("__0_0.distcp");
  std::string const huge = "\x8a\x09" + std::string(9, '\x7f');
  auto const values = [](std::vector<std::string> const& items) {
    return raw::properties(raw::tuple(items));
  };
  std::string const dtype = raw::torch_dtype("bfloat16");
  std::string const strided = raw::layout("torch.strided");
  std::string const format = raw::memory_format();
  expect_refused(std::vector<BadParts>{
      {"PropertiesNone", {.properties = "N"}, "properties of a tensor are None"},
      {"PropertiesWithoutState",
       {.properties = raw::made(raw::global(raw::metadata_module, "TensorProperties"))},
       "with its state"},
      {"PropertiesOfADict", {.properties = raw::properties("}")}, "expected a tuple of 5"},
      {"PropertiesOfFour",
       {.properties = values({dtype, strided, "\x89", format})},
       "expected a tuple of 5"},
      {"PropertiesTwice",
       {.properties =
            raw::properties(raw::property_values(dtype)) + raw::property_values(dtype) + "b"},
       "two states"},
      {"DtypeText",
       {.properties = values({text("bfloat16"), strided, "\x89", format, "\x89"})},
       "value 0 of a TensorProperties is a str"},
      {"LayoutText",
       {.properties = values({dtype, text("torch.strided"), "\x89", format, "\x89"})},
       "value 1 of"},
      {"GradNumber", {.properties = values({dtype, strided, "K\1", format, "\x89"})}, "value 2 of"},
      {"FormatNumber",
       {.properties = values({dtype, strided, "\x89", "K\1", "\x89"})},
       "value 3 of"},
      {"PinNone", {.properties = values({dtype, strided, "\x89", format, "N"})}, "value 4 of"},
      {"Quantised",
       {.properties = raw::properties(raw::property_values(raw::torch_dtype("qint8")))},
       "tensor \"w\" has dtype \"torch.qint8\""},
      {"Bits",
       {.properties = raw::properties(raw::property_values(raw::torch_dtype("bits8")))},
       "tensor \"w\" has dtype \"torch.bits8\""},
      {"DtypeOfNumpy",
       {.properties = raw::properties(raw::property_values(raw::global("numpy", "float32")))},
       "\"numpy.float32\""},
      {"Sparse",
       {.properties =
            raw::properties(raw::property_values(dtype, raw::layout("torch.sparse_coo")))},
       "layout \"torch.sparse_coo\""},
      {"SizeNone", {.size = "N"}, "size of a tensor is None"},
      {"SizeText", {.size = text("ab")}, "size of a tensor is a str"},
      {"SizeOfTexts", {.size = raw::tuple({text("a")})}, "size of a tensor is a tuple"},
      {"SizeOfBools", {.size = raw::tuple({"\x88", "\x88"})}, "size of a tensor is a tuple"},
      {"SizeOfHugeInts", {.size = raw::tuple({huge, huge})}, "size of a tensor is a tuple"},
      {"SizeNegative", {.size = raw::size({2, -3})}, "below zero"},
      {"SizeOverflows",
       {.size = raw::size({Index{1} << 40, Index{1} << 40})},
       "more than 2^63 bytes"},
      {"SizeOverflowsInBytes", {.size = raw::size({Index{1} << 62, 1})}, "more than 2^63 bytes"},
      {"SizeOverflowsBesideZero",
       {.size = raw::size({0, Index{1} << 62, Index{1} << 62})},
       "more than 2^63 bytes"},
      {"SizeOfManyDimensions", {.size = raw::size(std::vector<Index>(65, 1))}, "65 dimensions"},
      {"ChunksNone", {.chunks = "N"}, "chunks of a tensor are None"},
      {"ChunksOfNone", {.chunks = "](Ne"}, "the chunks of a tensor hold None"},
      {"ChunkWithoutState",
       {.chunks = "]" + raw::made(raw::global(raw::metadata_module, "ChunkStorageMetadata")) + "a"},
       "with its state"},
      {"ChunkWithoutSizes",
       {.chunks = raw::list({raw::object(raw::metadata_module, "ChunkStorageMetadata",
                                         raw::dict({text("offsets"), zero}))})},
       "no sizes"},
      {"ChunkTwice",
       {.chunks = "]" + raw::chunk(zero, size) +
                  raw::dict({text("offsets"), zero, text("sizes"), size}) + "ba"},
       "two states"},
      {"OffsetsText", {.chunks = chunks(text("a"), size)}, "offsets of a chunk is a str"},
      {"SizesNone", {.chunks = chunks(zero, "N")}, "sizes of a chunk is None"},
      {"OffsetsNegative", {.chunks = chunks(raw::size({-1, 0}), size)}, "is not inside"},
      {"SizesNegative", {.chunks = chunks(zero, raw::size({-2, 3}))}, "is not inside"},
      {"ChunkTooLarge", {.chunks = chunks(zero, raw::size({2, 4}))}, "is not inside"},
      {"ChunkOutside", {.chunks = chunks(raw::size({1, 0}), size)}, "is not inside"},
      {"ChunkOverflows",
       {.chunks = chunks(raw::size({std::numeric_limits<Index>::max(), 0}), raw::size({2, 3}))},
       "is not inside"},
      {"OffsetsOfAnotherRank", {.chunks = chunks(raw::size({0}), size)}, "is not inside"},
      {"SizesOfAnotherRank", {.chunks = chunks(zero, raw::size({2, 3, 1}))}, "is not inside"},
      {"KeyNumber", {.key = "K\1"}, "a key of state_dict_metadata is an int"},
      {"EntryNone", {.entry = "N"}, "key \"w\" is None"},
      {"EntryUnknown",
       {.entry = raw::object("my.module", "Thing", "}")},
       "an object of \"my.module.Thing\""},
      {"EntryOfAnotherModule",
       {.entry = raw::made(raw::global("os", "BytesStorageMetadata"))},
       "\"os.BytesStorageMetadata\""},
      {"EntryWithoutState",
       {.entry = raw::made(raw::global(raw::metadata_module, "TensorStorageMetadata"))},
       "with its state"},
      {"EntryTwice",
       {.entry = raw::tensor(Parts{}.properties, size, Parts{}.chunks) +
                 raw::dict({text("properties"), Parts{}.properties, text("size"), size,
                            text("chunks"), Parts{}.chunks}) +
                 "b"},
       "a TensorStorageMetadata is given two states"},
      {"KeyTwice", {.more_entries = {text("w"), raw::bytes()}}, "key \"w\" appears twice"},
      {"ObjectWithoutItem",
       {.more_entries = {text("o"), raw::bytes()}},
       "object \"o\" has no entry in storage_data"},
      {"IndexNone", {.index = "N"}, "maps None to a _StorageInfo"},
      {"IndexTwice",
       {.index = raw::index("w", zero) + raw::dict({text("fqn"), text("w")}) + "b"},
       "a MetadataIndex is given two states"},
      {"FqnNone", {.index = index_of({text("fqn"), "N"})}, "fqn of a MetadataIndex is None"},
      {"FqnMissing", {.index = index_of({text("index"), "N"})}, "has no fqn"},
      {"IndexText",
       {.index = index_of({text("fqn"), text("w"), text("index"), text("0")})},
       "index of a MetadataIndex is a str"},
      {"IndexOffsetText",
       {.index = index_of({text("fqn"), text("w"), text("offset"), text("0")})},
       "offset of a MetadataIndex is a str"},
      {"IndexWithoutOffset",
       {.index = raw::index("w", std::nullopt)},
       "tensor \"w\", chunk at [0, 0]: storage_data has no entry"},
      {"IndexOfAnotherRank",
       {.index = raw::index("w", raw::size({0}))},
       "storage_data has no entry"},
      {"IndexOfAnotherName", {.index = raw::index("v", zero)}, "storage_data has no entry"},
      {"IndexOfAnotherPlace",
       {.index = raw::index("w", raw::size({0, 1}))},
       "storage_data has no entry"},
      {"PlaceNone", {.place = "N"}, "maps a MetadataIndex to None"},
      {"PlaceWithoutState",
       {.place = raw::made(raw::global(raw::filesystem_module, "_StorageInfo"))},
       "each with its state"},
      {"PlaceTwice",
       {.place = raw::place("__0_0.distcp", 0, 1577) +
                 raw::dict(
                     {text("relative_path"), path, text("offset"), "K\0"s, text("length"), "K\1"}) +
                 "b"},
       "a _StorageInfo is given two states"},
      {"PathNumber",
       {.place = place_of("K\1", "K\1", "K\1")},
       "relative_path of a _StorageInfo is an int"},
      {"OffsetText",
       {.place = place_of(path, text("0"), "K\1")},
       "offset of a _StorageInfo is a str"},
      {"OffsetNegative",
       {.place = place_of(path, raw::number(-1), "K\1")},
       "offset of a _StorageInfo is -1"},
      {"OffsetHuge", {.place = place_of(path, huge, "K\1")}, "expected an int below 2^63"},
      {"LengthZero", {.place = place_of(path, "K\1", "K\0"s)}, "has 0 bytes"},
      {"LengthNegative",
       {.place = place_of(path, "K\1", raw::number(-5))},
       "length of a _StorageInfo is -5"},
      {"LengthOverflows",
       {.place = place_of(path, raw::number(Index{1} << 62), raw::number(Index{1} << 62))},
       "an end below 2^63"},
      {"LengthMissing",
       {.place = raw::object(raw::filesystem_module, "_StorageInfo",
                             raw::dict({text("relative_path"), path, text("offset"), "K\0"s}))},
       "lacks its"},
      {"Transformed",
       {.place = raw::object(raw::filesystem_module, "_StorageInfo",
                             raw::dict({text("relative_path"), path, text("transform_descriptors"),
                                        raw::list({text("zstd")})}))},
       "\"zstd\""},
      {"StateDictNone", {.state_dict_metadata = "N"}, "state_dict_metadata is None"},
      {"StorageDataNone", {.storage_data = "N"}, "storage_data is None"},
      {"StorageDataList", {.storage_data = "]"}, "storage_data is a list"},
      {"PlannerText", {.planner_data = text("a")}, "planner_data is a str"},
      {"PlannerKey",
       {.planner_data = raw::dict({"K\1", raw::tuple({text("w")})})},
       "a key of planner_data is an int"},
      {"PlannerPath",
       {.planner_data = raw::dict({text("w"), text("w")})},
       "planner_data of \"w\" is a str"},
      {"PlannerStep",
       {.planner_data = raw::dict({text("w"), raw::tuple({"N"})})},
       "a step that is None"},
      {"PlannerTwice",
       {.planner_data = raw::dict({text("w"), ")", text("w"), ")"})},
       "key \"w\" appears twice in planner_data"},
      {"McoreList", {.more_attributes = {text("mcore_data"), "]"}}, "mcore_data is a list"},
      {"McoreKey",
       {.more_attributes = {text("mcore_data"), raw::dict({"N", "}"})}},
       "a key of mcore_data is None"},
      {"McoreValue",
       {.more_attributes = {text("mcore_data"), raw::dict({text("w"), "N"})}},
       "mcore_data of \"w\" is None"},
      {"McoreShape",
       {.more_attributes =
            {text("mcore_data"),
             raw::dict({text("w"), raw::dict({text("nd_reformulated_orig_global_shape"), "N"})})}},
       "the original shape is None"},
  });
}

TEST(MetadataDamage, NamesThatLeaveTheFolderAreRefused) {
  for (std::string const& path :
       {"/etc/passwd"s, "../x"s, "a/../../x"s, ".."s, ""s, "a//b"s, "a/"s, "./a"s, "a\0b"s, "/"s}) {
    auto const error = raw::error_of(raw::file_of(Parts{.place = raw::place(path, 0, 1)}));
    ASSERT_TRUE(error) << path;
    EXPECT_NE(error->sentence().find("not a file in the checkpoint's folder"), std::string::npos)
        << error->what();
  }
  for (std::string const& path : {"a"s, "a/b/c.distcp"s, "..a"s, "a..b/..."s})
    EXPECT_FALSE(raw::error_of(raw::file_of(Parts{.place = raw::place(path, 0, 1)}))) << path;
}

TEST(MetadataDamage, AValueThatBecameTheStateOfAnObjectIsGone) {
  std::string const state =
      raw::dict({text("offsets"), raw::size({0, 0}), text("sizes"), raw::size({2, 3})}) +
      "\x94";  // memo 0
  std::string const type = raw::made(raw::global(raw::metadata_module, "ChunkStorageMetadata"));
  std::string const list = "](" + type + state + "b" + type + "h\0be"s;
  std::string const stored_list = "]\x94" + raw::chunk(raw::size({0, 0}), raw::size({2, 3})) + "a";
  std::string const properties = Parts{}.properties;
  std::string const again = raw::tensor(properties, raw::size({2, 3}), "h\0"s);
  std::string const later_dict =
      raw::tensor(properties, raw::size({2, 3}), "]" + type + state + "ba") + "0}" + type +
      "h\0b0"s;
  expect_refused(std::vector<BadParts>{
      {"StateTwice", {.chunks = list}, "expected a dict of its own"},
      {"ListTwice",
       {.chunks = stored_list, .more_entries = {text("v"), again}},
       "expected a list of its own"},
      {"RoomUsedAgain", {.size = later_dict + raw::size({2, 3})}, "expected a dict of its own"},
  });
}

TEST(MetadataDamage, ContainersInThemselvesAreNothingSpecial) {
  std::string const loop = "]\x94h\0a"s;
  EXPECT_FALSE(raw::error_of(raw::file_of(Parts{.more_attributes = {text("extra"), loop}})));
  EXPECT_FALSE(raw::error_of(
      raw::file_of(Parts{.more_attributes = {text("extra"), "}\x94" + text("k") + "h\0s"s}})));
  expect_refused(std::vector<BadParts>{
      {"ChunksInThemselves", {.chunks = loop}, "the chunks of a tensor hold a list"},
      {"DictOfItself", {.storage_data = "}\x94h\0h\0s"s}, "maps a dict to a dict"},
      {"TensorOfItself",
       {.entry = raw::made(raw::global(raw::metadata_module, "TensorStorageMetadata")) + "\x94}(" +
                 text("properties") + "h\0ub"s},
       "properties of a tensor are a TensorStorageMetadata"},
  });
}

TEST(MetadataDamage, MemoryDoesNotExplode) {
  std::string lists;
  for (int i = 0; i < 1 << 20; ++i) lists += ']';
  std::string const nested = "\x80\x04N" + std::string(1 << 20, '\x85') + ".";
  std::string const memo = "\x80\x04N" + std::string(1 << 20, '\x94') + ".";
  std::string const marks = "\x80\x04" + std::string((1 << 24) + 2, '(');
  std::string const values = "\x80\x04" + std::string((1 << 24) + 2, 'N');
  expect_refused(std::vector<BadFile>{
      {"Lists", "\x80\x04" + lists + ".", "The file is damaged"},
      {"NestedTuples", nested, "holds a tuple"},
      {"MemoOfOneValue", memo, "is too large for the"},
      {"Marks", marks, "marks are on the stack"},
      {"Values", values, "values are on the stack"},
  });
}

}  // namespace
}  // namespace reshard
