#include <gtest/gtest.h>

#include "core/containers/torch/zip/zip_directory.hpp"
#include "tests/support/scratch_folder.hpp"
#include "tests/support/torch_file_bytes.hpp"

namespace reshard {
namespace {

using ZipDamage = Damage<RawZip>;

RawEntry& data(RawZip& zip) { return zip.entries[2]; }

std::string descriptor_of(std::string_view payload) {
  auto const size = little_endian(static_cast<std::uint32_t>(payload.size()));
  return "PK\7\x8" + little_endian(crc32(std::as_bytes(std::span(payload)))) + size + size;
}

std::string extra_field(std::uint16_t id, std::string_view content) {
  return little_endian(id) + little_endian(static_cast<std::uint16_t>(content.size())) +
         std::string(content);
}

/// The ZIP64 end record and its locator for a directory of `entries` at `offset`.
std::string end64(std::uint64_t entries, std::uint64_t offset, std::uint64_t size,
                  std::uint64_t claimed_offset) {
  std::string const zero = little_endian(std::uint32_t{0});
  return "PK\6\6" + little_endian(std::uint64_t{44}) + "-" + std::string(3, '\0') + zero + zero +
         little_endian(entries) + little_endian(entries) + little_endian(size) +
         little_endian(offset) + "PK\6\7" + zero + little_endian(claimed_offset) +
         little_endian(std::uint32_t{1});
}

struct DirectoryNumbers {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

DirectoryNumbers directory_of(RawZip const& zip) {
  DirectoryNumbers numbers;
  for (RawEntry const& entry : zip.entries) {
    numbers.offset += local_header(entry).size() + entry.payload.size() + entry.descriptor.size() +
                      entry.gap.size();
    numbers.size += central_header(entry, 0).size();
  }
  return numbers;
}

std::vector<ZipDamage> end_record_damages() {
  return {
      {"TwoEndRecords",
       [](RawZip& zip) {
         zip.after = bytes_of(RawZip{.entries = {}, .directory_offset = 0});
         zip.comment_size = 22;
       },
       "2 end records"},
      {"ASecondArchiveBehind", [](RawZip& zip) { zip.after = bytes_of(torch_zip()); },
       "the directory is recorded"},
      {"TrailingBytes", [](RawZip& zip) { zip.after = "x"; }, "no end record"},
      {"CommentShorterThanSaid", [](RawZip& zip) { zip.comment_size = 5; }, "no end record"},
      {"CommentLongerThanSaid",
       [](RawZip& zip) {
         zip.comment = "abc";
         zip.comment_size = 1;
       },
       "no end record"},
      {"BytesInFront", [](RawZip& zip) { zip.before = "PK"; }, "the directory is recorded"},
      {"CountTooHigh",
       [](RawZip& zip) {
         zip.count = 5;
         zip.entries.back().comment = std::string(60, 'c');
       },
       "entry 4 of 5 has no header"},
      {"CountTooLow", [](RawZip& zip) { zip.count = 3; }, "bytes follow its 3 entries"},
      {"CountZero", [](RawZip& zip) { zip.count = 0; }, "bytes follow its 0 entries"},
      {"CountHuge", [](RawZip& zip) { zip.count = 65535; }, "holds at most"},
      {"CountsDiffer", [](RawZip& zip) { zip.count_here = 3; }, "several parts"},
      {"SeveralDisks", [](RawZip& zip) { zip.disk = 1; }, "several parts"},
      {"DirectoryOffsetTooSmall", [](RawZip& zip) { zip.directory_offset = 10; },
       "the directory is recorded"},
      {"DirectoryOffsetTooLarge", [](RawZip& zip) { zip.directory_offset = 0xfffffff0U; },
       "the directory is recorded"},
      {"DirectorySizeTooSmall", [](RawZip& zip) { zip.directory_size = 1; },
       "the directory is recorded"},
      {"DirectorySizeHuge", [](RawZip& zip) { zip.directory_size = 0xfffffffeU; },
       "the directory is recorded"},
      {"EmptyArchive",
       [](RawZip& zip) {
         zip.entries.clear();
         zip.before = "";
       },
       "empty"},
  };
}

std::vector<ZipDamage> zip64_damages() {
  auto const with_end64 = [](auto change) {
    return [change](RawZip& zip) {
      DirectoryNumbers numbers = directory_of(zip);
      std::uint64_t entries = zip.entries.size();
      std::uint64_t claimed = numbers.offset + numbers.size;
      change(numbers, entries, claimed);
      zip.end64 = end64(entries, numbers.offset, numbers.size, claimed);
    };
  };
  return {
      {"LocatorNamesAnotherPlace", with_end64([](auto&, auto&, auto& claimed) { claimed -= 1; }),
       "the ZIP64 locator names"},
      {"LocatorBeyondTheFile",
       with_end64([](auto&, auto&, auto& claimed) { claimed = ~std::uint64_t{0}; }),
       "the ZIP64 locator names"},
      {"CountContradictsTheEndRecord", with_end64([](auto&, auto& entries, auto&) { entries = 3; }),
       "counts 4 entries, the ZIP64 one 3"},
      {"CountOfTwoToTheSixtyFour",
       with_end64([](auto&, auto& entries, auto&) { entries = ~std::uint64_t{0}; }),
       "the ZIP64 one"},
      {"OffsetContradictsTheEndRecord",
       with_end64([](auto& numbers, auto&, auto&) { numbers.offset += 1; }), "the ZIP64 one at"},
      {"SizeContradictsTheEndRecord",
       with_end64([](auto& numbers, auto&, auto&) { numbers.size = ~std::uint64_t{0}; }),
       "the ZIP64 one at"},
      {"HugeCountBehindTheSentinel",
       [=](RawZip& zip) {
         with_end64([](auto&, auto& entries, auto&) { entries = std::uint64_t{1} << 60; })(zip);
         zip.count = 0xffff;
       },
       "holds at most"},
      {"OffsetWrapsAround",
       [=](RawZip& zip) {
         with_end64([](auto& numbers, auto&, auto&) { numbers.offset = ~std::uint64_t{0} - 5; })(
             zip);
         zip.directory_offset = 0xffffffffU;
       },
       "the directory is recorded"},
      {"SentinelsWithoutZip64", [](RawZip& zip) { zip.directory_offset = 0xffffffffU; },
       "the directory is recorded"},
  };
}

std::vector<ZipDamage> entry_damages() {
  return {
      {"Deflated", [](RawZip& zip) { data(zip).method = 8; }, "compressed (method 8)"},
      {"DeflatedInTheLocalHeaderOnly", [](RawZip& zip) { data(zip).local_method = 8; },
       "method 8 in its own header"},
      {"Encrypted", [](RawZip& zip) { data(zip).flags |= 1; }, "encrypted"},
      {"StronglyEncrypted", [](RawZip& zip) { data(zip).flags |= 1U << 6; }, "encrypted"},
      {"EncryptedInTheLocalHeaderOnly", [](RawZip& zip) { data(zip).local_flags = 0x0801; },
       "flags 0x0801"},
      {"LocalNameDiffers", [](RawZip& zip) { data(zip).local_name = "m/data/1"; },
       "a different name in its own header"},
      {"LocalNameIsLonger", [](RawZip& zip) { data(zip).local_name = "m/data/00"; },
       "a different name in its own header"},
      {"LocalCrcDiffers", [](RawZip& zip) { data(zip).local_crc = 1; }, "in its own header"},
      {"LocalSizeDiffers", [](RawZip& zip) { data(zip).local_size = 15; }, "in its own header"},
      {"SizeLargerThanTheRecord", [](RawZip& zip) { data(zip).size = data(zip).stored_size = 17; },
       "in its own header"},
      {"BothSizesLarger",
       [](RawZip& zip) { data(zip).size = data(zip).stored_size = data(zip).local_size = 1000000; },
       "but the directory begins at"},
      {"BothSizesSmaller",
       [](RawZip& zip) { data(zip).size = data(zip).stored_size = data(zip).local_size = 8; },
       "begins at"},
      {"StoredSizeDiffers", [](RawZip& zip) { data(zip).stored_size = 15; },
       "is stored in 15 bytes but has 16"},
      {"TwoRecordsOfOneName", [](RawZip& zip) { zip.entries.push_back(data(zip)); },
       "two records are named"},
      {"TwoEntriesForOneHeader",
       [](RawZip& zip) {
         data(zip).header_offset = 0;
         data(zip).name = "m/data/0";
       },
       "begins at"},
      {"HeaderOffsetInsideAnother", [](RawZip& zip) { data(zip).header_offset = 5; }, "begins at"},
      {"HeaderOffsetBeyondTheFile", [](RawZip& zip) { data(zip).header_offset = 0x7fffffff; },
       "begins at"},
      {"GapBetweenRecords", [](RawZip& zip) { data(zip).gap = "hidden"; }, "belong to no record"},
      {"GapBeforeTheDirectory", [](RawZip& zip) { zip.entries.back().gap = std::string(30, '\0'); },
       "belong to no record"},
      {"AnotherDisk", [](RawZip& zip) { data(zip).disk = 2; }, "part 2"},
      {"WrongDescriptor",
       [](RawZip& zip) {
         data(zip).flags |= 8;
         data(zip).descriptor = descriptor_of("another payload!");
       },
       "belong to no record"},
      {"DescriptorWithoutItsFlag",
       [](RawZip& zip) { data(zip).descriptor = descriptor_of(data(zip).payload); },
       "belong to no record"},
      {"WrongCrcOfThePickle",
       [](RawZip& zip) { zip.entries[0].crc = zip.entries[0].local_crc = 7; }, "has CRC"},
  };
}

std::vector<ZipDamage> extra_and_name_damages() {
  auto const named = [](std::string name) {
    return [name](RawZip& zip) { zip.entries.push_back({.name = name}); };
  };
  return {
      {"ExtraFieldRunsOut",
       [](RawZip& zip) { data(zip).central_extra = std::string("\1\0\x20\0", 4); },
       "an extra field"},
      {"LocalExtraFieldRunsOut",
       [](RawZip& zip) { data(zip).local_extra = std::string("FB\xff\xff", 4); }, "an extra field"},
      {"Zip64FieldTooShort",
       [](RawZip& zip) {
         data(zip).size = 0xffffffffU;
         data(zip).central_extra = extra_field(1, "1234");
       },
       "too short"},
      {"TwoZip64Fields",
       [](RawZip& zip) {
         data(zip).central_extra = extra_field(1, "12345678") + extra_field(1, "12345678");
       },
       "two ZIP64 fields"},
      {"Zip64SizeOfTwoToTheSixtyFour",
       [](RawZip& zip) {
         data(zip).size = data(zip).stored_size = data(zip).local_size = 0xffffffffU;
         data(zip).central_extra = data(zip).local_extra = extra_field(1, std::string(16, '\xff'));
       },
       "but the directory begins at"},
      {"Zip64SizeInTheDirectoryOnly",
       [](RawZip& zip) {
         data(zip).size = data(zip).stored_size = 0xffffffffU;
         data(zip).central_extra =
             extra_field(1, little_endian(std::uint64_t{24}) + little_endian(std::uint64_t{24}));
       },
       "in its own header"},
      {"ParentFolder", named("m/../../etc/passwd"), "is not a valid record name"},
      {"AbsoluteName", named("/etc/passwd"), "is not a valid record name"},
      {"Backslash", named("m\\data\\1"), "is not a valid record name"},
      {"NulInTheName", named(std::string("m/data\0.pkl", 11)), "is not a valid record name"},
      {"EmptyName", named(""), "is not a valid record name"},
      {"EmptyPart", named("m//data"), "is not a valid record name"},
      {"NameNotUtf8", named("m/\xff"), "is not a valid record name"},
  };
}

std::vector<ZipDamage> content_damages() {
  return {
      {"NoPickle", [](RawZip& zip) { zip.entries.erase(zip.entries.begin()); }, "without a record"},
      {"NoFolder",
       [](RawZip& zip) {
         for (RawEntry& entry : zip.entries) entry.name = entry.name.substr(2);
       },
       "without a record"},
      {"NoVersion", [](RawZip& zip) { zip.entries.pop_back(); }, "no record 'version'"},
      {"VersionIsNoNumber", [](RawZip& zip) { zip.entries[3].payload = "three"; },
       "its version is"},
      {"VersionFromTheFuture", [](RawZip& zip) { zip.entries[3].payload = "11\n"; },
       "its version is"},
      {"VersionTooLong", [](RawZip& zip) { zip.entries[3].payload = std::string(1000, '3'); },
       "at most 64 B are read"},
      {"BigEndian", [](RawZip& zip) { zip.entries[1].payload = "big"; }, "byte order"},
      {"TorchScript", [](RawZip& zip) { zip.entries.push_back({.name = "m/constants.pkl"}); },
       "TorchScript"},
      {"StorageMissing", [](RawZip& zip) { data(zip).name = "m/data/1"; },
       "the file has no such storage"},
      {"StorageTooShort", [](RawZip& zip) { data(zip).payload.resize(12); },
       "its record has 12 bytes"},
      {"StorageTooLong", [](RawZip& zip) { data(zip).payload.resize(20); },
       "its record has 20 bytes"},
      {"BytesBehindThePickle", [](RawZip& zip) { zip.entries[0].payload += "cos\nsystem\n"; },
       "follow the end of the pickle"},
  };
}

void expect_refused(std::vector<ZipDamage> const& damages) {
  MemoryFile const memory;
  for (ZipDamage const& damage : damages) {
    RawZip zip = torch_zip();
    damage.make(zip);
    auto const error = error_of_file(memory, bytes_of(zip));
    ASSERT_TRUE(error) << damage.name << " was read";
    EXPECT_EQ(error->kind(), ErrorKind::source) << damage.name << ": " << error->what();
    EXPECT_NE(error->sentence().find(damage.says), std::string::npos)
        << damage.name << ": " << error->what();
  }
}

TEST(ZipDirectory, ReadsTheUndamagedFile) {
  MemoryFile const memory;
  File const file = memory.holding(bytes_of(torch_zip()));
  TorchFile const torch = read_torch_file(file);
  ASSERT_EQ(torch.document.tensors.size(), 1U);
  FileTensor const tensor = file_tensor(torch, torch.document.tensors[0], "t");
  EXPECT_EQ(tensor.size_bytes, 16U);
  std::string payload(16, '\0');
  file.read_at(tensor.offset_bytes, std::as_writable_bytes(std::span(payload)));
  EXPECT_EQ(payload, std::string(16, '\x3f'));
}

TEST(ZipDirectory, RefusesDamagedEndRecords) { expect_refused(end_record_damages()); }
TEST(ZipDirectory, RefusesZip64Lies) { expect_refused(zip64_damages()); }
TEST(ZipDirectory, RefusesContradictoryEntries) { expect_refused(entry_damages()); }
TEST(ZipDirectory, RefusesBadExtraFieldsAndNames) { expect_refused(extra_and_name_damages()); }
TEST(ZipDirectory, RefusesWhatTorchDidNotWrite) { expect_refused(content_damages()); }

TEST(ZipDirectory, RefusesAHeaderInTheDirectory) {
  MemoryFile const memory;
  RawEntry const first = torch_zip().entries[0];
  RawEntry const second = torch_zip().entries[1];
  std::string const records = local_header(first) + first.payload;
  auto const end = static_cast<std::uint32_t>(records.size());
  std::string const directory = central_header(first, 0) + central_header(second, end);
  auto const error = error_of_file(
      memory, bytes_of(RawZip{.entries = {},
                              .before = records + directory,
                              .count = 2,
                              .directory_offset = end,
                              .directory_size = static_cast<std::uint32_t>(directory.size())}));
  ASSERT_TRUE(error);
  EXPECT_NE(
      error->sentence().find(fmt::format(
          "record \"m/byteorder\" has its header at {0}, but the directory begins at {0}", end)),
      std::string::npos)
      << error->what();
}

TEST(ZipDirectory, RefusesADirectoryOfManyMebibytesBeforeReadingIt) {
  constexpr std::uint32_t directory_bytes = (std::uint32_t{256} << 20) + 1;
  ScratchFolder const scratch("large_zip_directory");
  std::string const start = "PK\3\4";
  std::string const end = bytes_of(
      RawZip{.entries = {}, .count = 1, .directory_offset = 4, .directory_size = directory_bytes});
  File const file = File::create(scratch.path() / "a.pt");
  file.write_at(0, std::as_bytes(std::span(start)));
  file.write_at(start.size() + directory_bytes, std::as_bytes(std::span(end)));
  try {
    read_torch_file(File::open_for_reading(file.path()));
    ADD_FAILURE() << "not refused";
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source);
    EXPECT_NE(error.sentence().find("it has 256.0 MiB, at most 256.0 MiB are read"),
              std::string::npos)
        << error.sentence();
  }
}

TEST(ZipDirectory, ReadsDescriptorsInAllFourForms) {
  MemoryFile const memory;
  std::string const payload(16, '\x3f');
  std::string const crc = little_endian(crc32(std::as_bytes(std::span(payload))));
  std::string const narrow_sizes =
      little_endian(std::uint32_t{16}) + little_endian(std::uint32_t{16});
  std::string const wide_sizes =
      little_endian(std::uint64_t{16}) + little_endian(std::uint64_t{16});
  for (std::string const& descriptor :
       {crc + narrow_sizes, crc + wide_sizes, "PK\7\x8" + crc + narrow_sizes,
        "PK\7\x8" + crc + wide_sizes}) {
    RawZip zip = torch_zip();
    data(zip).flags |= 8;
    data(zip).descriptor = descriptor;
    data(zip).local_size = 0;
    data(zip).local_crc = 0;
    auto const error = error_of_file(memory, bytes_of(zip));
    EXPECT_FALSE(error) << descriptor.size() << ": " << error->what();
  }
}

TEST(ZipDirectory, ReadsACommentAZip64EndRecordAndEntriesInAnyOrder) {
  MemoryFile const memory;
  RawZip zip = torch_zip();
  zip.comment = "made by hand";
  DirectoryNumbers const numbers = directory_of(zip);
  zip.end64 = end64(4, numbers.offset, numbers.size, numbers.offset + numbers.size);
  auto error = error_of_file(memory, bytes_of(zip));
  EXPECT_FALSE(error) << error->what();
  zip.count = 0xffff;
  zip.directory_offset = zip.directory_size = 0xffffffffU;
  error = error_of_file(memory, bytes_of(zip));
  EXPECT_FALSE(error) << error->what();
}

TEST(ZipDirectory, TakesAZeroCrcForNone) {
  MemoryFile const memory;
  RawZip zip = torch_zip();
  for (RawEntry& entry : zip.entries) entry.crc = entry.local_crc = 0;
  TorchFile const torch = read_torch_file(memory.holding(bytes_of(zip)));
  EXPECT_FALSE(torch.storages.at("0").crc32.has_value());
}

TEST(TorchFileDamage, TruncationAtEveryLengthIsASourceError) {
  MemoryFile const memory;
  for (std::string const& whole : {bytes_of(torch_zip()), bytes_of(RawLegacy{})})
    for (std::size_t length = 0; length < whole.size(); ++length) {
      auto const error = error_of_file(memory, std::string_view(whole).substr(0, length));
      ASSERT_TRUE(error) << length << " of " << whole.size() << " bytes were read";
      ASSERT_EQ(error->kind(), ErrorKind::source) << length << ": " << error->what();
    }
}

/// Every byte replaced: an Error of kind source, or a file whose tensors lie inside it.
void expect_no_surprise(MemoryFile const& memory, std::string const& bytes, std::string_view what) {
  try {
    File const file = memory.holding(bytes);
    TorchFile const torch = read_torch_file(file);
    for (pickle::TensorRef const& ref : torch.document.tensors) {
      FileTensor const tensor = file_tensor(torch, ref, "t");
      EXPECT_LE(tensor.offset_bytes, bytes.size()) << what;
      if (tensor.strides.empty()) {
        EXPECT_LE(tensor.size_bytes, bytes.size() - tensor.offset_bytes) << what;
      }
    }
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source) << what << ": " << error.what();
  }
}

TEST(TorchFileDamage, EveryByteChangedIsAnErrorOrACorrectReading) {
  MemoryFile const memory;
  for (std::string const& whole : {bytes_of(torch_zip()), bytes_of(RawLegacy{})})
    for (std::size_t at = 0; at < whole.size(); ++at)
      for (int const change : {0x01, 0x80, 0xff}) {
        std::string bytes = whole;
        bytes[at] = static_cast<char>(bytes[at] ^ change);
        expect_no_surprise(memory, bytes, fmt::format("byte {} changed by {:02x}", at, change));
      }
}

TEST(TorchFileDamage, EveryBitOfTheDirectoryThatChangesIsNoticed) {
  // All but the fields nothing is read from: versions, times, attributes.
  MemoryFile const memory;
  RawZip const zip = torch_zip();
  std::string const whole = bytes_of(zip);
  std::size_t const directory = directory_of(zip).offset;
  std::size_t const entry_bytes = central_header(zip.entries[0], 0).size();
  auto const is_read = [&](std::size_t at) {
    if (at >= entry_bytes) return false;
    return !(at >= 4 && at < 8) && !(at >= 12 && at < 16) && !(at >= 36 && at < 42);
  };
  for (std::size_t at = 0; at < entry_bytes; ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = whole;
      bytes[directory + at] = static_cast<char>(bytes[directory + at] ^ (1 << bit));
      bool const noticed = error_of_file(memory, bytes).has_value();
      EXPECT_TRUE(noticed || !is_read(at)) << "byte " << at << " bit " << bit;
    }
}

}  // namespace
}  // namespace reshard
