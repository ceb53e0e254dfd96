#include "core/base/shared_text.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace reshard {

struct SharedText::Entry {
  std::string text;
  std::atomic<std::uint32_t> holders = 0;
};

/// All texts of the process, in parts with a lock each. A count falls to 0 under the lock of its
/// part only, so what is found there is never about to go.
class SharedText::Pool {
 public:
  /// Never destroyed: texts in static storage may outlive any other object.
  static Pool& of_process() {
    static auto* const pool = new Pool;
    return *pool;
  }

  Entry* take(std::string_view text) {
    Part& part = part_of(text);
    std::lock_guard const lock(part.mutex);
    auto found = part.entries.find(text);
    if (found == part.entries.end()) {
      auto entry = std::make_unique<Entry>();
      entry->text = text;
      std::string_view const key = entry->text;
      found = part.entries.emplace(key, std::move(entry)).first;
    }
    ++found->second->holders;
    return found->second.get();
  }

  void give_back(Entry* entry) {
    Part& part = part_of(entry->text);
    std::lock_guard const lock(part.mutex);
    if (--entry->holders == 0) part.entries.erase(part.entries.find(entry->text));
  }

 private:
  struct Part {
    std::mutex mutex;
    std::unordered_map<std::string_view, std::unique_ptr<Entry>> entries;
  };
  Part& part_of(std::string_view text) {
    return parts_[std::hash<std::string_view>()(text) % parts_.size()];
  }
  std::array<Part, 16> parts_;
};

SharedText::SharedText(SharedText const& other) noexcept : entry_(other.entry_) {
  if (entry_ != nullptr) ++entry_->holders;
}

std::string const& SharedText::text() const {
  static auto const* const nothing = new std::string;
  return entry_ == nullptr ? *nothing : entry_->text;
}

SharedText::Entry* SharedText::entry_of(std::string_view text) {
  return text.empty() ? nullptr : Pool::of_process().take(text);
}

void SharedText::release() noexcept {
  std::uint32_t holders = entry_->holders;
  while (holders > 1)
    if (entry_->holders.compare_exchange_weak(holders, holders - 1)) return;
  Pool::of_process().give_back(entry_);
}

}  // namespace reshard
