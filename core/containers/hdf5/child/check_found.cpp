#include "core/containers/hdf5/child/check_found.hpp"

#include <algorithm>
#include <tuple>
#include <unordered_set>

#include <fmt/ranges.h>

#include "core/containers/hdf5/names.hpp"

namespace reshard::hdf5 {
namespace {

class Checks {
 public:
  Checks(std::uint64_t file_bytes, std::string_view place)
      : file_bytes_(file_bytes), place_(place) {}

  void datasets(std::vector<FoundDataset> const& all) const {
    std::unordered_set<std::string_view> names;
    for (FoundDataset const& each : all) {
      if (auto const problem = name_problem(each.name))
        refuse(each, fmt::format("the name cannot be used: {}", *problem), "Rename it.");
      if (!names.insert(each.name).second)
        refuse(each, "the name appears twice", "Keep one of them.");
      dataset(each);
    }
  }

  void objects(std::vector<FoundDataset> const& all) const {
    datasets(all);
    for (FoundDataset const& each : all)
      if (each.dtype != DType::u8 || each.shape.size() != 1)
        refuse(each,
               fmt::format("it is {} of shape {}, an object is U8 with one dimension",
                           name(each.dtype), shown_shape(each.shape)),
               damaged);
  }

  void no_overlap(Found const& found) const {
    std::vector<FoundDataset const*> all;
    for (auto const* list : {&found.tensors, &found.objects})
      for (FoundDataset const& each : *list)
        if (each.size_bytes > 0) all.push_back(&each);
    std::ranges::sort(all, {}, [](FoundDataset const* each) { return each->offset_bytes; });
    for (std::size_t i = 1; i < all.size(); ++i) {
      FoundDataset const& before = *all[i - 1];
      if (before.offset_bytes + before.size_bytes > all[i]->offset_bytes)
        refuse(*all[i],
               fmt::format("it begins at byte {}, where '{}' ends at {}: they overlap",
                           all[i]->offset_bytes, shown(before.name),
                           before.offset_bytes + before.size_bytes),
               damaged);
    }
  }

  void attributes(RootAttributes const& attributes) const {
    for (auto const& [key, value] : attributes)
      if (!is_line(key) || !is_text(value) || value.size() > largest_value_bytes)
        fail(ErrorKind::source,
             "{}: the root attribute '{}' is not UTF-8 or longer than {} bytes. {}", place_,
             shown(key), largest_value_bytes, damaged);
  }

 private:
  static constexpr std::string_view damaged = "The file is damaged: compare it with the original.";

  void dataset(FoundDataset const& each) const {
    if (each.shape.size() > largest_rank)
      refuse(each,
             fmt::format("it has {} dimensions, more than {}", each.shape.size(), largest_rank),
             damaged);
    auto const bytes = tensor_bytes(each.dtype, each.shape);
    if (!bytes)
      refuse(each,
             fmt::format("shape {} of {} is not a whole number of bytes below 2^61",
                         shown_shape(each.shape), name(each.dtype)),
             damaged);
    if (*bytes != each.size_bytes)
      refuse(each,
             fmt::format("shape {} of {} needs {} bytes, {} are stored", shown_shape(each.shape),
                         name(each.dtype), *bytes, each.size_bytes),
             damaged);
    if (each.offset_bytes > file_bytes_ || each.size_bytes > file_bytes_ - each.offset_bytes)
      refuse(each,
             fmt::format("its {} bytes begin at {}, the file ends at {}", each.size_bytes,
                         each.offset_bytes, file_bytes_),
             "The file is damaged or truncated: compare its size with the original.");
    bool const labelled = each.axes.empty() || each.axes.size() == each.shape.size();
    if (!labelled || !std::ranges::all_of(each.axes, [](std::string const& axis) {
          return !axis.empty() && is_line(axis);
        }))
      refuse(each, "its dimension labels are not one line of UTF-8 for each dimension", damaged);
    if (!is_line(each.domain))
      refuse(each, "its attribute 'domain' is not a line of UTF-8", damaged);
  }

  [[noreturn]] void refuse(FoundDataset const& each, std::string_view what,
                           std::string_view next) const {
    fail(ErrorKind::source, "{}, dataset '{}': {}. {}", place_, shown(each.name), what, next);
  }

  std::uint64_t file_bytes_;
  std::string_view place_;
};

void sort_by_place(std::vector<FoundDataset>& all) {
  std::ranges::sort(all, {}, [](FoundDataset const& each) {
    return std::tuple(each.offset_bytes, each.size_bytes, std::string_view(each.name));
  });
}

}  // namespace

std::optional<std::uint64_t> tensor_bytes(DType dtype, std::span<Index const> shape) {
  auto const width = static_cast<std::uint64_t>(bits(dtype));
  if (std::ranges::any_of(shape, [](Index extent) { return extent < 0; })) return std::nullopt;
  auto const last = shape.empty() ? std::uint64_t{1} : static_cast<std::uint64_t>(shape.back());
  if (last % 8 * width % 8 != 0) return std::nullopt;
  if (std::ranges::any_of(shape, [](Index extent) { return extent == 0; })) return 0;
  std::uint64_t total = width;
  for (Index const extent : shape)
    if (__builtin_mul_overflow(total, static_cast<std::uint64_t>(extent), &total))
      return std::nullopt;
  return total / 8;
}

std::string shown_shape(std::span<Index const> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

void check_found(Found& found, std::uint64_t file_bytes, std::string_view place) {
  Checks const checks(file_bytes, place);
  checks.attributes(found.attributes);
  checks.datasets(found.tensors);
  checks.objects(found.objects);
  checks.no_overlap(found);
  sort_by_place(found.tensors);
  sort_by_place(found.objects);
}

}  // namespace reshard::hdf5
