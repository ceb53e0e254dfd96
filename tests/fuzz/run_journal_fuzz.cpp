// The journal folder of a target, as the next run finds it: the identity of the job up to the first
// NUL, then files, each a byte for its name, two for its size, and its bytes. Whatever stands
// there, a run either says why it cannot use it or takes over cells that are in order and joined;
// what it has then written itself says the same.

#include <array>
#include <cstring>

#include "core/base/hash/crc64.hpp"
#include "pipeline/journal/earlier_work.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/support/scratch_folder.hpp"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::array<char const*, 8> file_names = {
    "0001-00000", "0001-00001",        "0001.base",     "0002-00000",
    "0002.base",  "99999999999-00000", "0001-01048577", "job.toml"};

/// In memory where there is such a folder; gone at the end.
fs::path const& scratch() {
  static ScratchFolder const folder(
      "fuzz", fs::is_directory("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path());
  return folder.path();
}

MpiSession& mpi() {
  static MpiSession session(nullptr, nullptr);
  return session;
}

void put(fs::path const& path, std::string_view bytes) {
  File::create(path).write_at(0, fuzz::bytes_of(bytes));
}

/// Makes the folder; returns the identity's text.
std::string_view lay_out(fs::path const& folder, std::string_view input) {
  for (auto const& entry : fs::directory_iterator(folder)) fs::remove_all(entry);
  std::string_view const identity = input.substr(0, input.find('\0'));
  put(folder / "job", identity);
  input.remove_prefix(std::min(identity.size() + 1, input.size()));
  while (input.size() >= 3) {
    auto const byte = [&](std::size_t i) { return static_cast<std::uint8_t>(input[i]); };
    std::size_t const size = std::min<std::size_t>(byte(1) | byte(2) << 8U, input.size() - 3);
    put(folder / file_names[byte(0) % file_names.size()], input.substr(3, size));
    input.remove_prefix(3 + size);
  }
  return identity;
}

void expect_joined(JournalEntry const& done) {
  std::size_t end = 0;
  for (CellRange const& range : done.cells) {
    FUZZ_EXPECT(range.begin < range.end && (range.begin > end || &range == &done.cells.front()));
    end = range.end;
  }
}

/// Of a plan that is larger than what most inputs speak of.
JournalLimits const limits = {.cells = 1 << 20,
                              .digests = 1 << 20,
                              .records = 1 << 20,
                              .file_bytes = std::vector<std::uint64_t>(1 << 20, 1 << 20),
                              .file_sums = 1 << 20};

bool same(JournalEntry const& a, JournalEntry const& b) {
  return a.bytes == b.bytes && a.cells == b.cells && a.digests == b.digests &&
         a.records == b.records && a.files == b.files;
}

}  // namespace
}  // namespace reshard

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  (void)mpi();
  fs::path const folder = scratch() / "journal";
  fs::create_directory(folder);
  std::string_view const text = lay_out(folder, fuzz::text_of(data, size));
  if (auto const identity = parse_identity(text)) FUZZ_EXPECT(identity_text(*identity) == text);
  JournaledFiles const files = {.sync = [](std::uint32_t) {},
                                .write = [](std::span<HeldBytes const>) {}};
  JournalFolder const journal(folder);
  (void)journal.obstacle(scratch(), {});
  auto const earlier = fuzz::accepted(
      ErrorKind::source, [&] { return take_over_work(journal, Comm::world(), files, limits); });
  if (!earlier) return 0;
  expect_joined(earlier->done);
  EarlierWork const again = take_over_work(journal, Comm::world(), files, limits);
  FUZZ_EXPECT(again.runs == earlier->runs + 1 && same(again.done, earlier->done));
  return 0;
}

/// Checksums of blocks are put right, wherever a block begins.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  std::size_t const now = LLVMFuzzerMutate(data, size, most);
  constexpr char magic[] = "RSHJRNL1";
  for (std::size_t at = 0; seed % 16 != 0 && at + 32 <= now; ++at) {
    std::uint64_t payload = 0;
    std::memcpy(&payload, data + at + 16, sizeof payload);
    if (std::memcmp(data + at, magic, 8) != 0 || payload > now - at - 32) continue;
    std::uint64_t const crc = reshard::crc64(std::as_bytes(std::span(data + at, 24 + payload)));
    std::memcpy(data + at + 24 + payload, &crc, sizeof crc);
  }
  return now;
}
