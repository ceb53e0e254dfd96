// Items of other writers, right and wrong.

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "core/containers/dcp/item_head.hpp"
#include "core/containers/torch/zip/stored_crc.hpp"
#include "tests/core/containers/dcp/item_files.hpp"
#include "tests/support/expect_refused.hpp"

namespace reshard::dcp {
namespace {

using namespace std::string_literals;

constexpr std::string_view metadata_advice = "The files are from different saves";

std::string item_of(std::string const& body, std::string payload = std::string(16, '\x3f')) {
  return bytes_of(ItemParts{.pickle = pickle_of(body), .payload = std::move(payload)});
}

bool at_once(std::string const& item) {
  return read_item_head(
             std::as_bytes(std::span(item).first(std::min<std::size_t>(item.size(), 4096))),
             item.size())
      .has_value();
}

std::uint64_t storage_offset(ItemFile const& file) {
  return read_torch_file(FileRange(file.file, file.place.offset_bytes, file.place.size_bytes))
      .storages.at("0")
      .offset_bytes;
}

/// A tensor of an item and where it should be.
struct Place {
  char const* what;
  PickledTensor tensor;
  std::uint64_t offset_bytes = 0;  ///< in the storage
  std::vector<Index> strides = {};
};

std::vector<Place> const places = {
    {"whole", {}},
    {"permuted", {.shape = {2, 2}, .strides = {1, 2}}, 0, {1, 2}},
    {"slice", {.offset = 1, .shape = {3}, .strides = {1}}, 4},
    {"column", {.offset = 1, .shape = {2}, .strides = {2}}, 4, {2}},
    {"expanded", {.shape = {5, 2}, .strides = {0, 1}}, 0, {0, 1}},
    {"element", {.offset = 3, .shape = {}, .strides = {}}, 12},
    {"empty", {.offset = 90, .shape = {0, 3}, .strides = {3, 1}}, 0},
    {"dimensions of one", {.shape = {1, 4, 1}, .strides = {9, 1, 3}}, 0},
};

TEST(ItemRead, ViewsAreFoundInTheirStorage) {
  for (Place const& place : places) {
    ItemFile const file(item_of(pickled_tensor(place.tensor)));
    ItemTensor const tensor = file.read(DType::f32, place.tensor.shape);
    EXPECT_EQ(tensor.payload_offset_bytes, storage_offset(file) + place.offset_bytes) << place.what;
    EXPECT_EQ(tensor.strides, place.strides) << place.what;
  }
}

TEST(ItemRead, ArchivesOfOlderReleasesAndOtherToolsAreRead) {
  std::string const pickle = pickle_of(pickled_tensor({}));
  std::string const payload(16, '\x3f');
  std::vector<std::string> const items = {
      bytes_of(ItemParts{.pickle = pickle, .payload = payload, .version_record = false}),
      bytes_of(ItemParts{
          .pickle = pickle, .payload = payload, .version_record = false, .byte_order = false}),
      bytes_of(ItemParts{.pickle = pickle, .payload = payload, .folder = "some_other_folder/"}),
      bytes_of(torch_zip(pickle)),
  };
  for (std::string const& item : items) {
    ItemFile const file(item);
    EXPECT_EQ(file.read(DType::f32, {2, 2}).payload_offset_bytes, storage_offset(file));
  }
  // Whatever torch itself wrote needs one read.
  EXPECT_TRUE(
      at_once(item_of("ctorch._utils\n_rebuild_tensor_v2\nq\0(("s + pickled_string("storage") +
                      "q\1ctorch\nFloatStorage\nq\2" + pickled_string("0") + "q\3" +
                      pickled_string("cuda:0") + "q\4K\4tq\5QK\0K\2K\2\x86q\6K\2K\1\x86q\7\x89"s +
                      "ccollections\nOrderedDict\nq\x08)Rq\x09tq\x0aRq\x0b")));
}

TEST(ItemRead, ParametersAndGradientsDoNotMatter) {
  std::string const hooks = "ccollections\nOrderedDict\n)R";
  for (
      std::string const& body : {
          "ctorch._utils\n_rebuild_parameter\n" + pickled_tensor({}) + "\x88" + hooks + "\x87R",
          "ctorch._utils\n_rebuild_parameter\n" + pickled_tensor({}) + "\x89" + hooks + "\x87R",
          "ctorch._utils\n_rebuild_parameter_with_state\n(" + pickled_tensor({}) + "\x88" + hooks +
              "}" + pickled_string("tp") + "\x88stR",
          "ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\nctorch\nTensor\n(" +
              pickled_storage({}) + "K\0"s + pickled_tuple({2, 2}) + pickled_tuple({2, 1}) +
              "\x89" + hooks + "t}" + pickled_string("a") + "K\1stR",
          pickled_tensor({.last_arguments = "\x88" + hooks}),
      }) {
    ItemFile const file(item_of(body));
    auto const error = file.error(DType::f32, {2, 2});
    EXPECT_FALSE(error) << error->what();
  }
}

TEST(ItemRead, UntypedStoragesHaveTheTypeOfTheTensor) {
  std::string const hooks =
      "\x89"
      "ccollections\nOrderedDict\n)R";
  PickledTensor const tensor{.storage_class = "torch.storage\nUntypedStorage",
                             .count = 16,
                             .offset = 2,
                             .shape = {3, 2},
                             .strides = {1, 3},
                             .function = "torch._utils\n_rebuild_tensor_v3",
                             .last_arguments = hooks + "ctorch\nuint16\n"};
  ItemFile const file(item_of(pickled_tensor(tensor)));
  ItemTensor const found = file.read(DType::u16, {3, 2});
  EXPECT_EQ(found.payload_offset_bytes, storage_offset(file) + 4);
  EXPECT_EQ(found.strides, (std::vector<Index>{1, 3}));
}

TEST(ItemRead, NamesBothSidesOfADisagreement) {
  ItemFile const file(item_of(pickled_tensor({})));
  for (auto const& [dtype, shape] : {std::pair(DType::bf16, std::vector<Index>{2, 2}),
                                     std::pair(DType::f32, std::vector<Index>{4}),
                                     std::pair(DType::f32, std::vector<Index>{2, 3}),
                                     std::pair(DType::f32, std::vector<Index>{})}) {
    auto const error = file.error(dtype, shape);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::source);
    std::string const& sentence = error->sentence();
    EXPECT_NE(sentence.find("\"w\" holds F32 of shape (2, 2)"), std::string::npos) << sentence;
    EXPECT_NE(
        sentence.find(fmt::format("has {} of shape ({})", name(dtype), fmt::join(shape, ", "))),
        std::string::npos)
        << sentence;
    EXPECT_NE(sentence.find("bytes [1003, "), std::string::npos) << sentence;
    EXPECT_NE(sentence.find(metadata_advice), std::string::npos) << sentence;
  }
}

TEST(ItemRead, RefusesOtherValuesByName) {
  std::string const hooks =
      "\x89"
      "ccollections\nOrderedDict\n)R";
  struct Case {
    std::string body;
    char const* says;
  };
  std::string const conj = "}" + pickled_string("conj") + "\x88s";
  std::string const subclass =
      "ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\ncmy.module\nFancy\n(" +
      pickled_storage({}) + "K\0"s + pickled_tuple({2, 2}) + pickled_tuple({2, 1}) + hooks + "t}tR";
  for (Case const& refused : {
           Case{pickled_tensor({.last_arguments = hooks + conj}), "conjugated or negated"},
           Case{"ctorch._utils\n_rebuild_qtensor\n(" + pickled_storage({}) + "tR",
                "a quantised tensor"},
           Case{"ctorch._utils\n_rebuild_sparse_tensor\n(" + pickled_storage({}) + "tR",
                "a sparse tensor"},
           Case{"ctorch._utils\n_rebuild_meta_tensor_no_storage\n(ctorch\nfloat32\ntR",
                "a meta tensor"},
           Case{"ctorch._utils\n_rebuild_wrapper_subclass\n(ca\nB\ntR",
                "a tensor of a wrapper class"},
           Case{subclass, "a tensor of class my.module.Fancy"},
           Case{"](" + pickled_tensor({}) + "e", "the item holds a list"},
           Case{"cos\nsystem\n(X\2\0\0\0lstR"s, "an object of os.system"},
           Case{"N", "the item holds a None"},
           Case{pickled_tensor({.storage_class = "torch\nQInt8Storage"}), "QInt8Storage"},
           Case{pickled_tensor({.count = 5}), "5 elements"},
           Case{pickled_tensor({.shape = {2, 3}, .strides = {3, 1}}), "ends with element 5"},
           Case{pickled_tensor({.offset = -1}), "below zero"},
           Case{pickled_tensor({.shape = {2, 2}, .strides = {-2, 1}}), "below zero"},
           Case{pickled_tensor({.count = std::int64_t{1} << 62}), "elements"},
           Case{pickled_tensor(
                    {.shape = {std::int64_t{1} << 62, std::int64_t{1} << 62}, .strides = {0, 0}}),
                "2^63"},
       }) {
    auto const error = ItemFile(item_of(refused.body)).error(DType::f32, {2, 2});
    ASSERT_TRUE(error) << refused.says;
    EXPECT_EQ(error->kind(), ErrorKind::source);
    EXPECT_NE(error->sentence().find(refused.says), std::string::npos) << error->what();
    EXPECT_NE(error->sentence().find("\"w\""), std::string::npos) << error->what();
  }
}

TEST(ItemRead, TensorsOfTorchaoAreObjectsWhereTheyMayBe) {
  auto const item = [](std::string const& dtype, std::string const& shape) {
    return ItemFile(
        item_of("ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_wrapper_subclass\n"
                "ctorchao.quantization\nInt8Tensor\n(ctorchao.quantization\nInt8Tensor\nctorch\n" +
                dtype + "\n" + shape + "t}tR"));
  };
  auto const read = [](ItemFile const& file) {
    return read_tensor_item(file.file, file.place, DType::bf16, std::vector<Index>{2, 2}, "w",
                            TorchaoTensors::objects);
  };
  ItemFile const plain(item_of(pickled_tensor({})));
  EXPECT_FALSE(object_in_item(plain.file, plain.place));
  ItemFile const file = item("bfloat16", pickled_tuple({2, 2}));
  auto const object = object_in_item(file.file, file.place);
  ASSERT_TRUE(object);
  EXPECT_EQ(object->text, "a tensor of class torchao.quantization.Int8Tensor");
  EXPECT_TRUE(object->torchao);
  ItemFile const function(item_of("ctorch._tensor\n_rebuild_from_type_v2\n"));
  auto const bare = function.error(DType::bf16, {2, 2});
  ASSERT_TRUE(bare);
  EXPECT_NE(bare->sentence().find("torch._tensor._rebuild_from_type_v2"), std::string::npos);
  EXPECT_TRUE(read(file).object);
  auto const refused = file.error(DType::bf16, {2, 2});
  ASSERT_TRUE(refused);
  EXPECT_NE(refused->sentence().find("torchao.quantization.Int8Tensor, a quantised tensor"),
            std::string::npos)
      << refused->sentence();
  test::expect_refused(ErrorKind::source, "holds BF16 of shape (2, 3), .metadata has BF16", [&] {
    read(item("bfloat16", pickled_tuple({2, 3})));
  });
  for (auto const& [dtype, shape] :
       {std::pair<std::string, std::string>("no_such_type", pickled_tuple({2, 2})),
        {"bfloat16", "N"},
        {"bfloat16", "(NNt"}})
    test::expect_refused(ErrorKind::source, "has no dtype and shape that can be read",
                         [&, &one = dtype, &two = shape] { read(item(one, two)); });
}

TEST(ItemRead, PlacesOutsideTheFileAreErrors) {
  ItemFile file(item_of(pickled_tensor({})));
  for (auto const& [offset, size] :
       {std::pair<std::uint64_t, std::uint64_t>{file.file.size_bytes() + 1, 0},
        {0, ~std::uint64_t{0}},
        {~std::uint64_t{0}, 1},
        {~std::uint64_t{0}, 0},
        {1003, file.file.size_bytes()},
        {1003, 0},
        {0, 0},
        {1003, 1}}) {
    file.place.offset_bytes = offset;
    file.place.size_bytes = size;
    auto const error = file.error(DType::f32, {2, 2});
    ASSERT_TRUE(error) << offset << " " << size;
    EXPECT_EQ(error->kind(), ErrorKind::source) << error->what();
  }
}

TEST(ItemDamage, WrongLengthsAndOffsetsAreErrors) {
  for (std::string const& item : {whole_item(DType::f32, {2, 2}, std::string(16, '\x3f')),
                                  item_of(pickled_tensor({})), bytes_of(torch_zip())}) {
    ItemFile file(item);
    ItemPlace const right = file.place;
    EXPECT_FALSE(file.error(DType::f32, {2, 2}));
    for (std::uint64_t size = 0; size <= right.size_bytes + 11; ++size) {
      file.place.size_bytes = size;
      EXPECT_EQ(file.error(DType::f32, {2, 2}).has_value(), size != right.size_bytes) << size;
    }
    file.place = right;
    for (std::uint64_t offset = 990; offset < 1020; ++offset) {
      file.place.offset_bytes = offset;
      EXPECT_EQ(file.error(DType::f32, {2, 2}).has_value(), offset != right.offset_bytes) << offset;
    }
  }
}

/// An Error of kind source, or elements inside the item.
void expect_harmless(std::string const& item) {
  ItemFile const file(item, 64);
  try {
    ItemTensor const tensor = file.read(DType::f32, {2, 2});
    std::uint64_t last = 1;
    for (std::size_t d = 0; d < tensor.strides.size(); ++d)
      last += static_cast<std::uint64_t>(tensor.strides[d]);
    if (tensor.strides.empty()) last = 4;
    EXPECT_GE(tensor.payload_offset_bytes, 64U);
    EXPECT_LE(tensor.payload_offset_bytes + last * 4, 64 + item.size());
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source) << error.what();
  }
}

TEST(ItemDamage, ChangedBytesDoNoHarm) {
  std::mt19937_64 random(20260804);
  for (std::string const& item :
       {whole_item(DType::f32, {2, 2}, std::string(16, '\x3f')), item_of(pickled_tensor({})),
        item_of(pickled_tensor({.offset = 1, .shape = {2, 2}, .strides = {0, 2}}))}) {
    for (std::size_t at = 0; at < item.size(); ++at)
      for (int const value : {0, 1, 0x7f, 0xff, static_cast<unsigned char>(item[at]) ^ 0x20}) {
        std::string changed = item;
        changed[at] = static_cast<char>(value);
        expect_harmless(changed);
      }
    for (int round = 0; round < 2000; ++round) {
      std::string changed = item;
      for (int i = 0; i < 3; ++i) changed[random() % changed.size()] = static_cast<char>(random());
      if (random() % 4 == 0) changed.erase(random() % changed.size(), random() % 8);
      expect_harmless(changed);
    }
  }
}

TEST(ItemDamage, APickleThatIsNotTheRecordsIsNotTaken) {
  // The checksum of the pickle is looked at, too.
  std::string item = whole_item(DType::f32, {2, 2}, std::string(16, '\x3f'));
  std::size_t const sizes = item.find("K\2K\2\x86");
  ASSERT_NE(sizes, std::string::npos);
  item[sizes + 1] = '\1';
  auto const error = ItemFile(item).error(DType::f32, {1, 2});
  ASSERT_TRUE(error);
  EXPECT_NE(error->sentence().find("has CRC"), std::string::npos) << error->what();
}

/// What the archive says of its storage's bytes.
std::optional<std::uint32_t> recorded_crc(ItemFile const& file) {
  ItemTensor const tensor = file.read(DType::f32, {2, 2});
  FileRange const archive(file.file, file.place.offset_bytes, file.place.size_bytes);
  return zip::stored_crc32(archive, tensor.storage_offset_bytes - file.place.offset_bytes,
                           tensor.storage_bytes);
}

TEST(ItemRead, TheRecordOfTheTensorIsToldWithItsChecksum) {
  std::string const payload(16, '\x3f');
  std::string const item = whole_item(DType::f32, {2, 2}, payload);
  ItemFile const file(item);
  ItemTensor const tensor = file.read(DType::f32, {2, 2});
  EXPECT_EQ(tensor.storage_offset_bytes, tensor.payload_offset_bytes);
  EXPECT_EQ(tensor.storage_bytes, payload.size());
  EXPECT_EQ(recorded_crc(file), crc_of(payload));
  FileRange const archive(file.file, file.place.offset_bytes, file.place.size_bytes);
  EXPECT_EQ(zip::record_name(archive, tensor.storage_offset_bytes - file.place.offset_bytes),
            "archive/data/0");
  EXPECT_EQ(zip::record_name(archive, 1), "");
}

TEST(ItemRead, ARecordWithoutAChecksumHasNone) {
  std::string item = whole_item(DType::f32, {2, 2}, std::string(16, '\x3f'));
  std::uint32_t const crc = crc_of(std::string(16, '\x3f'));
  std::string const word(reinterpret_cast<char const*>(&crc), sizeof crc);
  std::size_t changed = 0;
  for (std::size_t at = item.find(word); at != std::string::npos;
       at = item.find(word)) {  // descriptor and directory
    item.replace(at, word.size(), std::string(4, '\0'));
    ++changed;
  }
  EXPECT_EQ(changed, 2U);
  EXPECT_EQ(recorded_crc(ItemFile(item)), std::nullopt);
}

}  // namespace
}  // namespace reshard::dcp
