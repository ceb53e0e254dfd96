#include "stages/write/extent_cloner.hpp"

#include <algorithm>
#include <span>

#include "core/io/shared_extents.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t most_copied_bytes = std::uint64_t{8} << 20;

}  // namespace

bool ExtentCloner::clone(CloneExtent const& extent) {
  std::pair const files(extent.from_file, extent.file);
  if (never_ || refused_.contains(files)) return false;
  auto const from = sources_.open(extent.from_file);
  auto const to = targets_.open(extent.file);
  CloneAnswer const answer =
      clone_range({from->file(), extent.from_bytes, to->file(), extent.offset_bytes, extent.bytes});
  if (answer == CloneAnswer::refused) refused_.insert(files);
  never_ = answer == CloneAnswer::never_between;
  return answer == CloneAnswer::cloned;
}

void ExtentCloner::copy(CloneExtent const& extent) {
  buffer_.resize(std::min(extent.bytes, most_copied_bytes));
  auto const from = sources_.open(extent.from_file);
  auto const to = targets_.open(extent.file);
  for (std::uint64_t done = 0; done < extent.bytes;) {
    std::span const part(buffer_.data(), std::min(extent.bytes - done, most_copied_bytes));
    from->read_at(extent.from_bytes + done, part);
    to->write_at(extent.offset_bytes + done, part);
    done += part.size();
  }
}

}  // namespace reshard
