// The journal of a rank. Its entries are the same after being written and read again, and at most
// as many as there are count as synced.

#include <cstring>

#include "core/base/hash/crc64.hpp"
#include "stages/write/journal.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/support/torch_file_bytes.hpp"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace reshard {
namespace {

/// Puts the checksums of blocks right: magic, kind, size, payload, CRC-64. Returns where the whole
/// blocks end.
void set_crcs(std::uint8_t* data, std::size_t size) {
  for (std::size_t at = 0; size - at >= 32;) {
    std::uint64_t payload = 0;
    std::memcpy(&payload, data + at + 16, sizeof payload);
    if (payload > size - at - 32) return;
    std::uint64_t const crc = crc64(std::as_bytes(std::span(data + at, 24 + payload)));
    std::memcpy(data + at + 24 + payload, &crc, sizeof crc);
    at += 32 + payload;
  }
}

}  // namespace
}  // namespace reshard

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  static MemoryFile const memory;
  if (auto const entry = parse_journal_block(fuzz::text_of(data, size)))
    FUZZ_EXPECT(parse_journal_block(journal_block(*entry)) == entry);
  File const file = memory.holding(fuzz::text_of(data, size));
  auto const journal = fuzz::attempt(ErrorKind::source, [&] { return read_journal(file.path()); });
  if (!journal || !*journal) return 0;
  ++fuzz::accepted_inputs;
  FUZZ_EXPECT((*journal)->synced <= (*journal)->entries.size());
  for (JournalEntry const& entry : (*journal)->entries)
    FUZZ_EXPECT(parse_journal_block(journal_block(entry)) == entry);
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  std::size_t const now = LLVMFuzzerMutate(data, size, most);
  if (seed % 16 != 0) reshard::set_crcs(data, now);
  return now;
}
