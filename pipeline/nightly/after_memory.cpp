#include "pipeline/nightly/after_memory.hpp"

#include <fmt/format.h>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/base/files/paths.hpp"
#include "core/base/hash/xxh3.hpp"
#include "core/formats/manifest/manifest.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view ending = ".after";
constexpr std::string_view first_words = "nightly.after succeeded for reshard.json with XXH3-128 ";
constexpr std::uint64_t most_record_bytes = 1ULL << 30U;
constexpr std::uint64_t most_memory_bytes = 4096;

std::string memory_text(fs::path const& target) {
  std::string const record = read_text_file(target / manifest_name, most_record_bytes);
  return fmt::format("{}{}\n", first_words, xxh3_128(record));
}

/// Content of the file; "" without one, and for a link.
std::string text_of(fs::path const& memory) {
  std::string text;
  (void)capture([&] {
    if (fs::is_regular_file(fs::symlink_status(memory)))
      text = read_text_file(memory, most_memory_bytes);
  });
  return text;
}

}  // namespace

fs::path after_memory_of(fs::path const& target) { return hidden_beside(target, ending); }

std::optional<std::string> target_of_memory(std::string_view file_name) {
  return hidden_for(file_name, ending);
}

bool after_has_succeeded(fs::path const& target) {
  std::string const text = text_of(after_memory_of(target));
  if (text.empty()) return false;
  bool same = false;
  (void)capture([&] { same = text == memory_text(target); });
  return same;
}

void remember_after(fs::path const& target) {
  fs::path const memory = after_memory_of(target);
  write_text_file(memory, memory_text(target));
  sync_directory(memory.parent_path());
}

void forget_after(fs::path const& target) {
  fs::path const memory = after_memory_of(target);
  std::error_code stays;
  if (text_of(memory).starts_with(first_words)) fs::remove(memory, stays);
}

}  // namespace reshard
