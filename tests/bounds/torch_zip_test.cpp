#include "core/containers/torch/torch_file.hpp"
#include "core/containers/torch/zip/zip_directory.hpp"
#include "tests/bounds/bounds.hpp"
#include "tests/support/torch_file_bytes.hpp"

namespace reshard {
namespace {

void read_zip(std::string const& bytes) {
  static MemoryFile const memory;
  File const file = memory.holding(bytes);
  static_cast<void>(zip::read_directory(FileRange(file)));
}

void read_torch(std::string const& bytes) {
  static MemoryFile const memory;
  static_cast<void>(read_torch_file(memory.holding(bytes)));
}

/// An archive of many empty records, with the ZIP64 end record that more than 65534 of them need.
template <class Name>
std::string archive_of(std::size_t count, Name name_of) {
  std::string bytes;
  std::string directory;
  for (std::size_t i = 0; i < count; ++i) {
    RawEntry const entry{.name = name_of(i)};
    directory += central_header(entry, static_cast<std::uint32_t>(bytes.size()));
    bytes += local_header(entry);
  }
  std::uint64_t const begin = bytes.size();
  std::uint64_t const end = begin + directory.size();
  std::string const end64 = "PK\6\6" + little_endian(std::uint64_t{44}) +
                            little_endian(std::uint32_t{0x002d002d}) +
                            little_endian(std::uint64_t{0}) + little_endian(std::uint64_t{count}) +
                            little_endian(std::uint64_t{count}) +
                            little_endian(std::uint64_t{directory.size()}) + little_endian(begin);
  std::string const locator = "PK\6\7" + little_endian(std::uint32_t{0}) + little_endian(end) +
                              little_endian(std::uint32_t{1});
  std::string const last =
      "PK\5\6" + std::string(4, '\0') + std::string(12, '\xff') + std::string(2, '\0');
  return bytes + directory + end64 + locator + last;
}

TEST(ZipBounds, ManyRecords) {
  auto const numbered = [](std::size_t i) { return fmt::format("m/data/{}", i); };
  EXPECT_EQ(bounded("300k records", archive_of(300'000, numbered), read_zip), "");
  expect_refused(bounded("300k records of one name",
                         archive_of(300'000, [](std::size_t) { return "m/a"; }), read_zip),
                 "two records are named");
  expect_refused(
      bounded("names of 60 KB",
              archive_of(200, [](std::size_t) { return std::string(60'000, '/'); }), read_zip),
      "not a valid record name");
}

TEST(ZipBounds, CountsThatNothingBacksAreNotBelieved) {
  RawZip lying = torch_zip();
  lying.count = 65'000;
  expect_refused(bounded("65000 entries that are not there", bytes_of(lying), read_zip),
                 "entries are counted");
  RawZip many_ends = torch_zip();
  many_ends.comment = repeated("PK\5\6", 16'000);
  bounded("a comment of end records", bytes_of(many_ends), read_zip);
}

TEST(LegacyBounds, PicklesWithoutEndAndManyStorages) {
  RawLegacy endless;
  endless.object =
      "\x80\x02(" + repeated("K\1", 400'000) + pickled_string(std::string(8'000'000, 'x'));
  endless.keys = endless.storages = "";
  expect_refused(bounded("a pickle of 9 MB without its end", bytes_of(endless), read_torch), "");
  RawLegacy unknown;
  unknown.keys = "\x80\x02](";
  for (std::size_t i = 0; i < 200'000; ++i) unknown.keys += pickled_string(fmt::format("k{}", i));
  unknown.keys += "e.";
  expect_refused(bounded("200k storages that nothing refers to", bytes_of(unknown), read_torch),
                 "is listed, but nothing refers to it");
}

}  // namespace
}  // namespace reshard
