#include <chrono>

#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <gtest/gtest.h>

#include "core/containers/torch/pickle/pickle_graph.hpp"
#include "tests/support/torch_file_bytes.hpp"

namespace reshard {
namespace {

using namespace std::string_literals;

struct BadPickle {
  char const* name;
  std::string bytes;
  char const* says;
};

void expect_refused(std::vector<BadPickle> const& pickles) {
  for (BadPickle const& bad : pickles) {
    auto const begin = std::chrono::steady_clock::now();
    auto const error = error_of_pickle(bad.bytes);
    auto const took = std::chrono::steady_clock::now() - begin;
    ASSERT_TRUE(error) << bad.name << " was read";
    EXPECT_EQ(error->kind(), ErrorKind::source) << bad.name << ": " << error->what();
    EXPECT_NE(error->sentence().find(bad.says), std::string::npos)
        << bad.name << ": " << error->what();
    EXPECT_EQ(error->sentence().rfind("test: pickle byte ", 0), 0U)
        << bad.name << ": " << error->what();
    EXPECT_LT(took, std::chrono::seconds(10)) << bad.name;
  }
}

TEST(PickleDamage, RefusesBrokenStreams) {
  expect_refused({
      {"Empty", "", "1 more bytes are needed"},
      {"OnlyProtocol", "\x80\x02", "1 more bytes are needed"},
      {"MissingStop", "]", "1 more bytes are needed"},
      {"UnknownOpcode", "]\xfe.", "opcode 0xfe is unknown"},
      {"ZeroOpcode", "\0."s, "opcode 0x00 is unknown"},
      {"ProtocolSix", "\x80\x06N.", "protocol 6"},
      {"StopOnAnEmptyStack", ".", "the stack is empty"},
      {"ValuesLeftOver", "NN.", "1 values and 0 marks left over"},
      {"MarkLeftOver", "N(N.", "left over"},
      {"StopBehindAMark", "N(.", "the stack is empty"},
      {"PopOfNothing", "0N.", "the stack is empty"},
      {"PopMarkWithoutMark", "N1N.", "there is none"},
      {"TupleWithoutMark", "Nt.", "there is none"},
      {"Tuple3OfTwo", "NN\x87.", "more values than the stack holds"},
      {"TupleAcrossAMark", "N(N\x86.", "more values than the stack holds"},
      {"AppendToNothing", "a.", "the stack is empty"},
      {"AppendToATuple", ")Na.", "appended to a tuple"},
      {"AppendToAnInt", "K\1Na.", "appended to a int"},
      {"SetItemOnAList", "]NNs.", "set on a list"},
      {"OddSetItems", "}(Nu.", "odd number"},
      {"OddDict", "(Nd.", "odd number"},
      {"AddItemsToAList", "](N\x90.", "expected a set"},
      {"MemoMiss", "h\0."s, "memo index 0 is read"},
      {"MemoMissOfFourBytes", "j\xff\xff\xff\xff.", "memo index 4294967295 is read"},
      {"MemoIndexNoNumber", "gxyz\n.", "not a number below 2^32"},
      {"MemoIndexNegative", "]p-1\n.", "not a number below 2^32"},
      {"PutOfNothing", "q\0."s, "the stack is empty"},
      {"FrameLongerThanTheFile", "\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.",
       "more bytes are needed"},
  });
}

TEST(PickleDamage, RefusesLyingSizesBeforeAllocating) {
  expect_refused({
      {"StringOfFourGibibytes", "X\xff\xff\xff\xffhi.", "4294967295 more bytes are needed"},
      {"StringOfTwoToTheSixtyFour", "\x8d\xff\xff\xff\xff\xff\xff\xff\xffhi.",
       "more bytes are needed"},
      {"BytesOfTwoToTheSixtyThree", "\x8e\xff\xff\xff\xff\xff\xff\xff\x7fhi.",
       "more bytes are needed"},
      {"ByteArrayTooLong", "\x96\xff\xff\xff\xff\xff\xff\xff\x7fhi.", "more bytes are needed"},
      {"LongOfNegativeSize", "\x8b\xff\xff\xff\xff.", "at most 1024 are read"},
      {"LongOfTwoGibibytes", "\x8b\xff\xff\xff\x7f.", "at most 1024 are read"},
      {"LongOf1025Bytes", "\x8b\x01\x04\0\0"s + std::string(1025, '\1') + ".",
       "at most 1024 are read"},
      {"DecimalTooLong", "L" + std::string(5000, '9') + "L\n.", "is not a decimal integer"},
      {"DecimalNoDigits", "I12x\n.", "is not a decimal integer"},
      {"FloatNoNumber", "Fabc\n.", "is not a number"},
      {"LineWithoutEnd", "I123", "more bytes are needed"},
      {"LineOfTwoMebibytes", "V" + std::string(2 << 20, 'x'), "a line of text is longer"},
      {"StringNotUtf8", "X\x01\0\0\0\xff."s, "is not UTF-8"},
      {"StringOverlongUtf8", "X\x02\0\0\0\xc0\x80."s, "is not UTF-8"},
      {"EscapeCutShort", "V\\u12\n.", "is not an escaped string"},
      {"EscapeAboveUnicode", "V\\Uffffffff\n.", "is not an escaped string"},
      {"StringWithoutQuotes", "Sabc\n.", "is not a quoted string"},
      {"StringEndsInBackslash", "S'a\\'\n.", "is not a quoted string"},
  });
}

TEST(PickleDamage, RefusesOpcodesThatTorchNeverWrites) {
  expect_refused({
      {"Inst", "(ios\nsystem\n.", "opcode 0x69"},
      {"Obj", "(cos\nsystem\no.", "opcode 0x6f"},
      {"Ext1", "\x82\x01.", "opcode 0x82"},
      {"Ext2", "\x83\x01\x01.", "opcode 0x83"},
      {"Ext4", "\x84\x01\0\0\0."s, "opcode 0x84"},
      {"TextPersistentId", "Pabc\n.", "persistent id in text form"},
      {"OutOfBandBuffer", "\x97.", "opcode 0x97"},
      {"ReadOnlyBuffer", "N\x98.", "opcode 0x98"},
  });
}

TEST(PickleDamage, RefusesMalformedCalls) {
  expect_refused({
      {"CallOfAnInt", "K\1)R.", "a int is called"},
      {"CallOfAList", "])R.", "a list is called"},
      {"ArgumentsNoTuple", "cm\nf\n]R.", "expected a tuple"},
      {"NewObjectOfAString", "X\0\0\0\0)\x81."s, "expected a class and a tuple"},
      {"KeywordsNoDict", "cm\nC\n))\x92.", "expected a dict"},
      {"KeywordArgumentsNoTuple", "cm\nC\nK\1}NNs\x92.", "arguments are a int, expected a tuple"},
      {"StackGlobalOfInts", "K\1K\2\x93.", "expected strings"},
      {"GlobalWithNewline", "\x8c\x03os\n\x8c\x01x\x93.", "is not a name"},
      {"GlobalWithoutName", "cos\n\n.", "is not a name"},
      {"GlobalOfTenKilobytes", "c" + std::string(10000, 'm') + "\nf\n.", "is not a name"},
      {"BuildOnAList", "]Nb.", "a state is set on a list"},
      {"BuildTwice", "cm\nf\n)RNbNb.", "set twice"},
      {"HiddenCall", "cos\nsystem\nX\2\0\0\0ls\x85R0N."s, "thrown away"},
      {"HiddenCallBehindAMark", "(cos\nsystem\nX\2\0\0\0ls\x85R0(1N."s, "thrown away"},
  });
}

TEST(PickleDamage, RefusesBadTensors) {
  std::string const hooks = "ccollections\nOrderedDict\n)R";
  std::string const good = pickled_tensor({});
  std::string const parameter = "ctorch._utils\n_rebuild_parameter\n";
  expect_refused({
      {"PersistentIdOfAString",
       "X\1\0\0\0"
       "0Q."s,
       "a persistent id is not"},
      {"PersistentIdTooShort", "(" + pickled_string("storage") + "tQ.", "a persistent id is not"},
      {"PersistentIdOfAnotherKind",
       "(" + pickled_string("module") + "ctorch\nFloatStorage\n" + pickled_string("0") +
           pickled_string("cpu") + "K\1tQ.",
       "a persistent id is not"},
      {"OldStorageView",
       "(" + pickled_string("storage") + "ctorch\nFloatStorage\n" + pickled_string("0") +
           pickled_string("cpu") + "K\1)tQ.",
       "a view of another"},
      {"UnknownStorageClass", pickle_of(pickled_tensor({.storage_class = "torch\nQInt8Storage"})),
       "the storage class 'torch.QInt8Storage'"},
      {"StorageClassOfAnotherModule",
       pickle_of(pickled_tensor({.storage_class = "os\nFloatStorage"})),
       "the storage class 'os.FloatStorage'"},
      {"EmptyKey", pickle_of(pickled_tensor({.key = ""})), "a storage key of 0 bytes"},
      {"KeyOfAMegabyte", pickle_of(pickled_tensor({.key = std::string(1 << 20, '0')})),
       "a storage key of"},
      {"NegativeCount", pickle_of(pickled_tensor({.count = -1})), "-1 elements"},
      {"SizesAndStridesDiffer", pickle_of(pickled_tensor({.strides = {1}})),
       "2 sizes but 1 strides"},
      {"RankTooHigh",
       pickle_of(pickled_tensor({.shape = std::vector<std::int64_t>(65, 1), .strides = {}})),
       "65 dimensions"},
      {"NoArguments", pickle_of("ctorch._utils\n_rebuild_tensor_v2\n)R"), "has 0 arguments"},
      {"StorageIsAnInt",
       pickle_of("ctorch._utils\n_rebuild_tensor_v2\n(K\1K\0))\x89"s + hooks + "tR"),
       "expected a storage"},
      {"RequiresGradIsAnInt", pickle_of(pickled_tensor({.last_arguments = "K\1" + hooks})),
       "expected a bool"},
      {"UntypedWithoutDtype",
       pickle_of(pickled_tensor({.storage_class = "torch.storage\nUntypedStorage"})),
       "gives no element type"},
      {"BigOffset",
       pickle_of("ctorch._utils\n_rebuild_tensor_v2\n(" + pickled_storage({}) +
                 "\x8a\x09\0\0\0\0\0\0\0\0\1))\x89"s + hooks + "tR"),
       "expected a int"},
      {"SizeHoldsAString",
       pickle_of("ctorch._utils\n_rebuild_tensor_v2\n(" + pickled_storage({}) + "K\0"s +
                 pickled_string("x") + "\x85)\x89"s + hooks + "tR"),
       "holds a str"},
      {"ParameterOfAnInt", pickle_of(parameter + "K\1\x88" + hooks + "\x87R"), "expected a tensor"},
      {"EncodeOfTheEuroSign",
       pickle_of("c_codecs\nencode\n" + pickled_string("€") + pickled_string("latin1") + "\x86R"),
       "above 255"},
  });
}

struct BadTensor {
  char const* name;
  PickledTensor tensor;
  char const* says;
};

TEST(TensorDamage, RefusesTensorsOutsideTheirStorage) {
  constexpr std::int64_t huge = std::int64_t{1} << 62;
  std::vector<BadTensor> const tensors = {
      {"OffsetBehindTheEnd", {.offset = 4}, "ends with element 7"},
      {"LastElementOutside", {.offset = 1}, "ends with element 4"},
      {"NegativeOffset", {.offset = -1}, "below zero"},
      {"NegativeStride", {.offset = 3, .strides = {-2, 1}}, "the stride -2"},
      {"NegativeSize", {.shape = {-1, 2}}, "below zero"},
      {"StrideTooLarge", {.strides = {4, 1}}, "ends with element 5"},
      {"VolumeOverflows", {.shape = {huge, huge}}, "2^63 elements or more"},
      {"BytesOverflow", {.shape = {huge}, .strides = {0}}, "more than 2^63 bytes"},
      {"OffsetOverflows",
       {.offset = huge, .shape = {2, 2}, .strides = {huge, huge}},
       "an index of 2^63 or more"},
      {"LastIndexOverflows", {.shape = {3, 1}, .strides = {huge, 1}}, "an index of 2^63 or more"},
      {"CountOverStorage", {.count = 5}, "its record has 16 bytes"},
      {"CountUnderStorage", {.count = 3}, "its record has 16 bytes"},
      {"CountWrapsInBytes", {.count = huge + 4}, "its record has 16 bytes"},
      {"WiderClass", {.storage_class = "torch\nDoubleStorage"}, "its record has 16 bytes"},
      {"NoSuchKey", {.key = "1"}, "no such storage"},
      {"KeyWithAPath", {.key = "../version"}, "no such storage"},
  };
  MemoryFile const memory;
  for (BadTensor const& bad : tensors)
    for (bool const in_zip : {true, false}) {
      RawLegacy legacy;
      legacy.object = pickle_of(pickled_tensor(bad.tensor));
      auto const error =
          error_of_file(memory, in_zip ? bytes_of(torch_zip(legacy.object)) : bytes_of(legacy));
      ASSERT_TRUE(error) << bad.name << " was read";
      EXPECT_EQ(error->kind(), ErrorKind::source) << bad.name << ": " << error->what();
      EXPECT_TRUE(!in_zip || error->sentence().find(bad.says) != std::string::npos)
          << bad.name << ": " << error->what();
    }
}

TEST(LegacyDamage, RefusesContradictions) {
  std::vector<Damage<RawLegacy>> const damages = {
      {"WrongMagicOnly", [](RawLegacy& file) { file.magic[5] = 'x'; }, "plain pickle"},
      {"WrongProtocol", [](RawLegacy& file) { file.protocol = pickle_of(pickled_int(1000)); },
       "its protocol is 1000"},
      {"BigEndian",
       [](RawLegacy& file) {
         file.machine = pickle_of("}" + pickled_string("little_endian") + "\x89s");
       },
       "big-endian"},
      {"NoByteOrder", [](RawLegacy& file) { file.machine = pickle_of("}"); }, "little-endian"},
      {"KeysNoList", [](RawLegacy& file) { file.keys = pickle_of("}"); }, "expected a list"},
      {"KeyNoString", [](RawLegacy& file) { file.keys = pickle_of("]K\1a"); }, "expected a str"},
      {"KeyMissing",
       [](RawLegacy& file) {
         file.keys = pickle_of("]");
         file.storages.clear();
       },
       "no such storage"},
      {"KeyTwice",
       [](RawLegacy& file) {
         file.keys = pickle_of("](" + pickled_string("0") + pickled_string("0") + "e");
         file.storages += file.storages;
       },
       "listed twice"},
      {"KeyUnknown",
       [](RawLegacy& file) { file.keys = pickle_of("](" + pickled_string("1") + "e"); },
       "nothing refers to it"},
      {"CountDiffers", [](RawLegacy& file) { file.storages[0] = 5; }, "has 5 elements, but"},
      {"CountHuge",
       [](RawLegacy& file) { file.storages = std::string(8, '\xff') + std::string(16, '\0'); },
       "elements, but"},
      {"StorageCutShort", [](RawLegacy& file) { file.storages.pop_back(); },
       "has 4 elements of 4 bytes"},
      {"BytesBehind", [](RawLegacy& file) { file.storages += "x"; }, "its last storage ends at"},
      {"TwoClassesForOneKey",
       [](RawLegacy& file) {
         file.object = pickle_of(pickled_tensor({}) +
                                 pickled_tensor({.storage_class = "torch\nIntStorage"}) + "\x86");
       },
       "is given with"},
      {"TwoCountsForOneKey",
       [](RawLegacy& file) {
         file.object = pickle_of(pickled_tensor({}) + pickled_tensor({.count = 3}) + "\x86");
       },
       "is given with"},
  };
  MemoryFile const memory;
  for (auto const& damage : damages) {
    RawLegacy file;
    damage.make(file);
    auto const error = error_of_file(memory, bytes_of(file));
    ASSERT_TRUE(error) << damage.name << " was read";
    EXPECT_EQ(error->kind(), ErrorKind::source) << damage.name;
    EXPECT_NE(error->sentence().find(damage.says), std::string::npos)
        << damage.name << ": " << error->what();
  }
}

std::string repeated(std::string_view text, std::size_t count) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) all += text;
  return all;
}

TEST(PickleBombs, AMillionNestedListsAreRefused) {
  expect_refused({
      {"Lists", std::string(1000000, ']') + std::string(999999, 'a') + ".",
       "nested more than 1000 deep"},
      {"Tuples", "N" + std::string(1000000, '\x85') + ".", "nested more than 1000 deep"},
      {"Calls", "cm\nf\n" + repeated(")R", 500000) + ".", "nested more than 1000 deep"},
      {"Marks", std::string(1000000, '(') + "N.", "left over"},
      {"SharedThenDeep", "]q\0"s + repeated("\x85h\0\x86"s, 600) + ".",
       "nested more than 1000 deep"},
  });
  EXPECT_FALSE(error_of_pickle(std::string(999, ']') + std::string(998, 'a') + "."));
}

TEST(PickleBombs, SharingTwoToTheFortyTimesCostsNothing) {
  // Each level is a tuple of the level below, twice.
  EXPECT_FALSE(error_of_pickle("]" + repeated("2\x86", 900) + "."));
  MemoryFile const memory;
  auto const error = error_of_file(
      memory, bytes_of(torch_zip(pickle_of(repeated("2\x86", 0) + "]" + repeated("2\x86", 40)))));
  EXPECT_FALSE(error);
}

TEST(PickleBombs, CopiesOutOfSharedValuesDoNotMultiply) {
  // A string of 1 MiB, turned into bytes 2000 times; a list of 10^5, turned into a set 2000 times:
  // 2 GiB if each were a copy.
  std::string const text = pickled_string(std::string(1 << 20, 'a')) +
                           "q\0"
                           "0"s +
                           pickled_string("latin1") +
                           "q\1"
                           "0"s;
  EXPECT_FALSE(
      error_of_pickle(text + "](" + repeated("c_codecs\nencode\nh\0h\1\x86R"s, 2000) + "e."));
  std::string const list = "](" + std::string(100000, 'N') +
                           "eq\0"
                           "0"s;
  EXPECT_FALSE(
      error_of_pickle(list + "](" + repeated("c__builtin__\nset\nh\0\x85R"s, 2000) + "e."));
  std::string const keywords = "(" + std::string(1000, 'N') +
                               "tq\0"
                               "0cm\nC\nq\1"
                               "0}NNsq\2"
                               "0"s;
  expect_refused({{"KeywordCalls", keywords + "](" + repeated("h\1h\0h\2\x92"s, 1000) + "e.",
                   "objects share 1000 arguments"}});
}

TEST(PickleBombs, TheMemoryLimitHolds) {
  std::string const bytes = "](" + std::string(100000, 'N') + "e.";
  pickle::Limits const limits{.largest_bytes = 1 << 20};
  EXPECT_THROW(pickle::parse(std::as_bytes(std::span(bytes)), "test", nullptr, limits), Error);
  std::string const lists(1001, ']');
  EXPECT_THROW(
      pickle::parse(std::as_bytes(std::span(lists)), "test", nullptr, {.largest_nodes = 1000}),
      Error);
  EXPECT_NO_THROW(pickle::parse(std::as_bytes(std::span(bytes)), "test"));
}

/// What a pickle costs a process that reads it and nothing else.
struct Cost {
  bool refused = false;
  std::uint64_t bytes = 0;
  double seconds = 0;
};

std::uint64_t peak_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

/// Of this process, however busy the machine is.
double busy_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

Cost cost_of(std::string const& bytes) {
  int ends[2] = {};
  RESHARD_EXPECT(::pipe(ends) == 0);
  ::malloc_trim(0);  // what earlier tests freed would be used again, and not count
  if (::fork() == 0) {
    std::uint64_t const before = peak_bytes();
    double const begin = busy_seconds();
    Cost cost;
    cost.refused = error_of_pickle(bytes).has_value();
    cost.seconds = busy_seconds() - begin;
    cost.bytes = peak_bytes() - before;
    ::_exit(::write(ends[1], &cost, sizeof cost) == sizeof cost ? 0 : 1);
  }
  ::close(ends[1]);
  Cost cost;
  EXPECT_EQ(::read(ends[0], &cost, sizeof cost), static_cast<ssize_t>(sizeof cost));
  ::close(ends[0]);
  ::wait(nullptr);
  return cost;
}

TEST(PickleBombs, WhatIsRefusedTakesLittleMemoryAndTime) {
  // Of 64 MiB, the most that is read: with them no more than 704 MiB. Opcodes of one byte that each
  // make something the machine must keep.
  constexpr std::size_t size = 64U << 20;
  auto const filled = [](std::string start, std::string_view with) {
    while (start.size() < size) start += with;
    return start;
  };
  std::string const number = "L" + std::string(2450, '9') + "L\n";
  std::vector<std::pair<char const*, std::string>> const bombs = {
      {"Memoize", filled("N", "\x94")},
      {"MemoizeNewValues", filled("", "]\x94")},
      {"Dup", filled("N", "2")},
      {"DupAndMark", filled("N(N", "2(")},
      {"Mark", filled("", "(")},
      {"None", filled("", "N")},
      {"Lists", filled("", "]")},
      {"Tuples", filled("N", "\x85")},
      {"EmptyStrings", filled("", "\x8c\0"s)},
      {"Globals", filled("", "ca\nb\n")},
      {"Dicts", filled("", "}NNs0")},
      {"LongMemoIndex", filled("", "N0") + "Nr\xff\xff\xff\x03."s},
      {"GrowingList", filled("]", "Na")},
      {"PushAndPop", filled("", "N0")},
      {"Keywords", filled("cm\nC\nq\0(NNNNNNNNNNNNNNNNtq\1}NNsq\2"s, "h\0h\1h\2\x92"s)},
      {"LongNumbers", filled("", number)},
  };
  for (auto const& [name, bytes] : bombs) {
    Cost const cost = cost_of(bytes);
    EXPECT_TRUE(cost.refused) << name;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_LT(cost.bytes, std::uint64_t{640} << 20) << name;  // beside the bytes themselves
#endif
    EXPECT_LT(cost.seconds, 20)
        << name;  // a second of one idle core; hours, if a step cost what lies below it
  }
}

TEST(PickleBombs, AMillionKeysCostAMillionSteps) {
  constexpr std::size_t count = 1000000;
  auto const begin = std::chrono::steady_clock::now();
  // Half of them the key that is removed, all in front of the others: removing them one by one
  // would move the others half a million times.
  pickle::Document document;
  document.root = document.add_dict();
  pickle::NodeId const gone = document.add_string("gone");
  pickle::NodeId const kept = document.add_string("kept");
  for (std::size_t i = 0; i < count; ++i) {
    document.at(document.root).items.push_back(i < count / 2 ? gone : kept);
    document.at(document.root).items.push_back(document.root);
  }
  EXPECT_FALSE(pickle::deeper_than(document, 1000));
  EXPECT_TRUE(document.erase(document.root, "gone"));
  EXPECT_FALSE(document.erase(document.root, "gone"));
  EXPECT_EQ(document.at(document.root).items.size(), count);
  std::chrono::duration<double> const took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took.count(), 5);
}

struct Stranger {
  char const* name;
  std::string bytes;
  char const* says;
};

TEST(TorchFileDamage, SaysWhatAStrangeFileLooksLike) {
  std::string tar(1024, '\0');
  tar.replace(0, 4, "file");
  tar.replace(257, 5, "ustar");
  std::vector<Stranger> const strangers = {
      {"Empty", "", "an empty file"},
      {"GitLfs", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
       "git-lfs pointer"},
      {"Html", " \n<!DOCTYPE html><html></html>", "a web page"},
      {"Tar", tar, "a tar archive"},
      {"Safetensors", "\x08\0\0\0\0\0\0\0{\"a\":1} "s, "a safetensors file"},
      {"Hdf5", "\x89HDF\r\n\x1a\n", "an HDF5 file"},
      {"Gzip", "\x1f\x8b\x08", "a gzip file"},
      {"Numpy", "\x93NUMPY", "a numpy array"},
      {"PlainPickle", "\x80\x04N.", "a plain pickle"},
      {"Json", "{}", "a JSON file"},
      {"Zeros", std::string(4096, '\0'), "zero bytes"},
      {"Noise", "qwertz", "an unknown kind"},
  };
  MemoryFile const memory;
  for (Stranger const& stranger : strangers) {
    auto const error = error_of_file(memory, stranger.bytes);
    ASSERT_TRUE(error) << stranger.name;
    EXPECT_EQ(error->kind(), ErrorKind::source) << stranger.name;
    EXPECT_NE(error->sentence().find(stranger.says), std::string::npos)
        << stranger.name << ": " << error->what();
  }
}

}  // namespace
}  // namespace reshard
