#include "stages/write/journal.hpp"

#include <array>
#include <chrono>
#include <cstring>
#include <fstream>
#include <utility>

#include "core/base/crc64.hpp"
#include "core/transport/comm.hpp"

namespace reshard {
namespace {

// A block: magic, kind, payload bytes (little-endian words of 8 bytes), the payload, CRC-64 of all
// that. The program that reads it is the one that wrote it, to the byte: the identity of the run
// sees to that.
constexpr std::uint64_t magic = 0x314c4e524a485352U;  // "RSHJRNL1"
constexpr std::uint64_t most_journal_bytes = std::uint64_t{4} << 30;
enum class Kind : std::uint64_t { head = 1, entry = 2, synced = 3 };

class Encoder {
 public:
  Encoder& add(std::uint64_t value) {
    text_.append(reinterpret_cast<char const*>(&value), sizeof value);
    return *this;
  }
  Encoder& add(std::string_view bytes) {
    add(bytes.size());
    text_ += bytes;
    return *this;
  }
  Encoder& add(std::vector<SumShare> const& shares) {
    add(shares.size());
    for (SumShare const& share : shares) add(share.number).add(share.value);
    return *this;
  }
  std::string block(Kind kind) const {
    Encoder framed;
    framed.add(magic).add(static_cast<std::uint64_t>(kind)).add(text_);
    framed.add(crc64(std::as_bytes(std::span(framed.text_))));
    return framed.text_;
  }

 private:
  std::string text_;
};

/// Reads words and texts; once the bytes are at their end every further answer is empty and good()
/// is false.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : left_(bytes) {}

  std::uint64_t word() {
    std::string_view const bytes = take(sizeof(std::uint64_t));
    std::uint64_t value = 0;
    if (good_) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::string_view text() { return take(word()); }
  std::vector<SumShare> shares() {
    std::vector<SumShare> shares(count(16));
    for (SumShare& share : shares) share = {word(), word()};
    return shares;
  }
  /// A number of things that take `bytes` each.
  std::uint64_t count(std::uint64_t bytes) {
    std::uint64_t const number = word();
    good_ = good_ && number <= left_.size() / bytes;
    return good_ ? number : 0;
  }
  bool good() const { return good_; }
  std::string_view left() const { return left_; }

 private:
  std::string_view take(std::uint64_t bytes) {
    good_ = good_ && bytes <= left_.size();
    if (!good_) return {};
    std::string_view const taken = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return taken;
  }
  std::string_view left_;
  bool good_ = true;
};

struct Block {
  Kind kind = Kind::head;
  std::string_view payload;
};

/// The next whole block; `bytes` loses it.
std::optional<Block> next_block(std::string_view& bytes) {
  Decoder decoder(bytes);
  if (decoder.word() != magic) return std::nullopt;
  auto const kind = static_cast<Kind>(decoder.word());
  std::string_view const payload = decoder.text();
  if (!decoder.good()) return std::nullopt;
  std::string_view const framed = bytes.substr(0, bytes.size() - decoder.left().size());
  if (decoder.word() != crc64(std::as_bytes(std::span(framed))) || !decoder.good())
    return std::nullopt;
  bytes = decoder.left();
  return Block{kind, payload};
}

/// In their order in a block.
constexpr std::array sums_of_entries{
    &JournalEntry::digests, &JournalEntry::records,  &JournalEntry::files,  &JournalEntry::sources,
    &JournalEntry::covered, &JournalEntry::digested, &JournalEntry::written};

std::string head_block(std::uint64_t ranks, bool lockstep) {
  return Encoder().add(this_boot_id()).add(ranks).add(std::uint64_t{lockstep}).block(Kind::head);
}

std::optional<JournalEntry> entry_of(std::string_view payload) {
  Decoder decoder(payload);
  JournalEntry entry;
  entry.round = decoder.word();
  entry.bytes = decoder.word();
  entry.cells.resize(decoder.count(16));
  for (CellRange& range : entry.cells) range = {decoder.word(), decoder.word()};
  for (auto const list : sums_of_entries) entry.*list = decoder.shares();
  entry.held.resize(decoder.count(24));
  for (HeldBytes& held : entry.held) {
    held.file = static_cast<std::uint32_t>(decoder.word());
    held.segment.offset_bytes = decoder.word();
    held.segment.bytes = decoder.text();
  }
  for (std::uint64_t files = decoder.count(8); files > 0; --files)
    entry.unsynced.insert(static_cast<std::uint32_t>(decoder.word()));
  if (!decoder.good()) return std::nullopt;
  return entry;
}

}  // namespace

std::string this_boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

std::string journal_block(JournalEntry const& entry) {
  Encoder payload;
  payload.add(entry.round).add(entry.bytes).add(entry.cells.size());
  for (CellRange const& range : entry.cells) payload.add(range.begin).add(range.end);
  for (auto const list : sums_of_entries) payload.add(entry.*list);
  payload.add(entry.held.size());
  for (HeldBytes const& held : entry.held)
    payload.add(held.file).add(held.segment.offset_bytes).add(std::string_view(held.segment.bytes));
  payload.add(entry.unsynced.size());
  for (std::uint32_t const file : entry.unsynced) payload.add(file);
  return payload.block(Kind::entry);
}

std::optional<JournalEntry> parse_journal_block(std::string_view bytes) {
  auto const block = next_block(bytes);
  if (!block || block->kind != Kind::entry || !bytes.empty()) return std::nullopt;
  return entry_of(block->payload);
}

void write_journal(std::filesystem::path const& path, JournalEntry const& entry) {
  std::filesystem::path unnamed = path;
  unnamed += ".new";
  write_text_file(unnamed, head_block(1, false) + journal_block(entry));
  rename_path(unnamed, path);
  sync_directory(path.parent_path());
}

std::optional<Journal> read_journal(std::filesystem::path const& path) {
  std::string const all = read_text_file(path, most_journal_bytes);
  std::string_view bytes = all;
  auto const head = next_block(bytes);
  if (!head || head->kind != Kind::head) return std::nullopt;
  Decoder decoder(head->payload);
  Journal journal;
  journal.boot_id = decoder.text();
  journal.ranks = decoder.word();
  journal.lockstep = decoder.word() != 0;
  if (!decoder.good()) return std::nullopt;
  while (auto const block = next_block(bytes)) {
    if (block->kind == Kind::synced) {
      journal.synced =
          std::min<std::size_t>(Decoder(block->payload).word(), journal.entries.size());
      continue;
    }
    auto entry = entry_of(block->payload);
    if (block->kind != Kind::entry || !entry) break;
    journal.entries.push_back(*std::move(entry));
  }
  return journal;
}

JournalWriter::JournalWriter(Parts parts)
    : parts_(std::move(parts)), file_(File::create(parts_.path)) {
  append(head_block(parts_.ranks, parts_.lockstep));
  file_.sync();
  syncing_ = std::jthread([this] { sync_all(); });
}

JournalWriter::~JournalWriter() { stop(); }

void JournalWriter::stop() {
  {
    std::lock_guard const lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  if (syncing_.joinable()) syncing_.join();
}

void JournalWriter::end() {
  stop();
  if (failure_) throw *failure_;
  file_.close();
}

void JournalWriter::append(std::string const& block) {
  file_.write_at(size_bytes_, std::as_bytes(std::span(block)));
  size_bytes_ += block.size();
}

void JournalWriter::add(JournalEntry const& entry, std::span<Extent const> writes) {
  std::string const block = journal_block(entry);
  std::lock_guard const lock(mutex_);
  if (failure_) throw *failure_;
  append(block);
  ++entries_;
  for (Extent const& write : writes) {
    dirty_.insert(write.file);
    dirty_bytes_ += write.bytes;
  }
  if (dirty_bytes_ >= parts_.sync_bytes) changed_.notify_all();
}

void JournalWriter::sync_all() {
  auto const pause = std::chrono::duration<double>(parts_.sync_seconds);
  std::unique_lock lock(mutex_);
  for (bool last = false; !last && !failure_;) {
    changed_.wait_for(lock, pause, [&] { return ended_ || dirty_bytes_ >= parts_.sync_bytes; });
    last = ended_;  // what is added while the others are synced has its turn too
    sync_now(lock);
  }
}

/// What stands in the journal now reaches the device: first the files, then the mark that says so.
/// `lock` is given up meanwhile. Rounds without writes are marked too: where rounds count only when
/// every rank has them, a rank that only sends must not hold the others back.
void JournalWriter::sync_now(std::unique_lock<std::mutex>& lock) {
  if (entries_ == marked_) return;
  std::set<std::uint32_t> const files = std::exchange(dirty_, {});
  std::uint64_t const entries = entries_;
  dirty_bytes_ = 0;
  lock.unlock();
  auto failure = capture([&] {
    for (std::uint32_t const file : files) parts_.sync_file(file);
  });
  lock.lock();
  if (!failure) failure = capture([&] { append(Encoder().add(entries).block(Kind::synced)); });
  lock.unlock();
  if (!failure) failure = capture([&] { file_.sync(); });
  lock.lock();
  if (failure) failure_ = std::move(failure);
  marked_ = entries;
}

}  // namespace reshard
