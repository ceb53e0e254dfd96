#include "stages/write/journal.hpp"

#include <array>
#include <chrono>
#include <fstream>
#include <utility>

#include "core/base/hash/crc64.hpp"
#include "core/base/text/wire.hpp"
#include "core/base/threads/workers.hpp"
#include "core/transport/comm.hpp"

namespace reshard {
namespace {

// A block: magic, kind, payload bytes (little-endian words of 8 bytes), the payload, CRC-64 of all
// that. It is read only by the identical program: the identity of the run ensures that.
constexpr std::uint64_t magic = 0x314c4e524a485352U;  // "RSHJRNL1"
constexpr std::uint64_t most_journal_bytes = std::uint64_t{4} << 30;
constexpr std::string_view what = "a journal";
enum class Kind : std::uint64_t { head = 1, entry = 2, synced = 3 };

WireWriter& put_text(WireWriter& out, std::string_view bytes) {
  return out.word(bytes.size()).raw(bytes);
}

std::string block_of(Kind kind, WireWriter const& payload) {
  WireWriter framed;
  framed.word(magic).word(static_cast<std::uint64_t>(kind));
  put_text(framed, payload.bytes());
  framed.word(crc64(std::as_bytes(std::span(framed.bytes()))));
  return std::move(framed).take();
}

std::string_view text_from(WireReader& in) { return in.raw(in.word()); }

struct Block {
  Kind kind = Kind::head;
  std::string_view payload;
};

/// Removes the next complete block from `bytes`; nullopt if there is none.
std::optional<Block> next_block(std::string_view& bytes) {
  WireReader in(bytes, what);
  if (in.word() != magic) return std::nullopt;
  auto const kind = static_cast<Kind>(in.word());
  std::string_view const payload = text_from(in);
  if (!in.good()) return std::nullopt;
  std::string_view const framed = bytes.substr(0, bytes.size() - in.left().size());
  if (in.word() != crc64(std::as_bytes(std::span(framed))) || !in.good()) return std::nullopt;
  bytes = in.left();
  return Block{kind, payload};
}

/// In their order in a block.
constexpr std::array sums_of_entries{
    &JournalEntry::digests, &JournalEntry::records,  &JournalEntry::files,  &JournalEntry::sources,
    &JournalEntry::covered, &JournalEntry::digested, &JournalEntry::written};

std::string head_block(std::uint64_t ranks, bool lockstep) {
  WireWriter payload;
  put_text(payload, this_boot_id()).word(ranks).word(lockstep ? 1 : 0);
  return block_of(Kind::head, payload);
}

std::optional<JournalEntry> entry_of(std::string_view payload) {
  WireReader in(payload, what);
  JournalEntry entry;
  entry.round = in.word();
  entry.bytes = in.word();
  entry.cells.resize(in.word_count(16));
  for (CellRange& range : entry.cells) range = {in.word(), in.word()};
  for (auto const list : sums_of_entries) {
    (entry.*list).resize(in.word_count(16));
    for (SumShare& share : entry.*list) share = {in.word(), in.word()};
  }
  entry.held.resize(in.word_count(24));
  for (HeldBytes& held : entry.held) {
    held.file = static_cast<std::uint32_t>(in.word());
    held.segment.offset_bytes = in.word();
    held.segment.bytes = text_from(in);
  }
  entry.kept.resize(in.word_count(24));
  for (FileSpan& span : entry.kept) {
    span.file = static_cast<std::uint32_t>(in.word());
    span.begin = in.word();
    span.end = in.word();
  }
  for (std::size_t files = in.word_count(8); files > 0; --files)
    entry.unsynced.insert(static_cast<std::uint32_t>(in.word()));
  if (!in.good()) return std::nullopt;
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
  WireWriter payload;
  payload.word(entry.round).word(entry.bytes).word(entry.cells.size());
  for (CellRange const& range : entry.cells) payload.word(range.begin).word(range.end);
  for (auto const list : sums_of_entries) {
    payload.word((entry.*list).size());
    for (SumShare const& share : entry.*list) payload.word(share.number).word(share.value);
  }
  payload.word(entry.held.size());
  for (HeldBytes const& held : entry.held)
    put_text(payload.word(held.file).word(held.segment.offset_bytes), held.segment.bytes);
  payload.word(entry.kept.size());
  for (FileSpan const& span : entry.kept) payload.word(span.file).word(span.begin).word(span.end);
  payload.word(entry.unsynced.size());
  for (std::uint32_t const file : entry.unsynced) payload.word(file);
  return block_of(Kind::entry, payload);
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
  WireReader in(head->payload, what);
  Journal journal;
  journal.boot_id = text_from(in);
  journal.ranks = in.word();
  journal.lockstep = in.word() != 0;
  if (!in.good()) return std::nullopt;
  while (auto const block = next_block(bytes)) {
    if (block->kind == Kind::synced) {
      journal.synced =
          std::min<std::size_t>(WireReader(block->payload, what).word(), journal.entries.size());
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
  append(head_block(parts_.ranks, parts_.lockstep));  // synced with the first mark
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
    last = ended_;  // entries that were added during the sync are synced, too
    sync_now(lock);
  }
}

/// Syncs the entries of the journal so far: first the files, then a mark in the journal. `lock` is
/// released meanwhile. Rounds without writes are marked, too: in lockstep a rank that only sends
/// must not hold the others back.
void JournalWriter::sync_now(std::unique_lock<std::mutex>& lock) {
  if (entries_ == marked_) return;
  std::set<std::uint32_t> const files = std::exchange(dirty_, {});
  std::uint64_t const entries = entries_;
  dirty_bytes_ = 0;
  lock.unlock();
  std::vector<std::uint32_t> const each(files.begin(), files.end());
  auto failure =
      capture([&] { overlapped(each.size(), [&](std::size_t i) { parts_.sync_file(each[i]); }); });
  lock.lock();
  if (!failure)
    failure = capture([&] { append(block_of(Kind::synced, WireWriter().word(entries))); });
  lock.unlock();
  if (!failure) failure = capture([&] { file_.sync(); });
  lock.lock();
  if (failure) failure_ = std::move(failure);
  marked_ = entries;
}

}  // namespace reshard
