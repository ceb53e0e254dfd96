#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "core/base/hash/mixed_bits.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/tables/integers.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/huggingface/folder.hpp"

namespace reshard::huggingface {

using safetensors::shown;

namespace {

/// The process has each name once.
std::uint64_t hash_of(SharedText const& name) { return mixed_bits(name.hash()); }

}  // namespace

IndexCheck::IndexCheck(Folder const& folder) : folder_(folder), tensors_in_(folder.files.size()) {
  std::unordered_map<SharedText, std::size_t> numbers;
  for (std::size_t f = 0; f < folder.files.size(); ++f)
    numbers.emplace(names_.emplace_back(folder.files[f].string()), f);
  WeightMap const& map = folder.weight_map;
  places_.reserve(map.size(), [&](std::uint32_t place) { return hash_of(map[place].first); });
  for (std::size_t i = 0; i < map.size(); ++i) {
    places_.add(hash_of(map[i].first), narrow<std::uint32_t>(i));
    ++tensors_in_[numbers.at(map[i].second)];
  }
}

SharedText const* IndexCheck::file_of(SharedText const& tensor) const {
  WeightMap const& map = folder_.weight_map;
  std::uint32_t const place =
      places_.id(hash_of(tensor), [&](std::uint32_t one) { return map[one].first == tensor; });
  return place == IdTable::none ? nullptr : &map[place].second;
}

// docs/formats/huggingface.md, rules 10 to 12.
FileCheck IndexCheck::check(std::size_t file, safetensors::Header const& header) const {
  FileCheck result;
  std::vector<std::string> strays;
  for (std::size_t i = 0; i < header.tensors.size(); ++i) {
    SharedText const& tensor = header.tensors[i].name;
    SharedText const* const found = file_of(tensor);
    if (folder_.weight_map.empty() || (found != nullptr && *found == names_[file])) {
      result.indexed.push_back(i);
    } else if (found == nullptr) {
      strays.push_back(shown(tensor));
    } else {
      fail(
          ErrorKind::source,
          "{}, tensor '{}': the index places it in {}, but this file holds one of that name too. {}",
          (folder_.path / folder_.files[file]).string(), shown(tensor), shown(*found),
          "Files of two checkpoints are mixed: download the folder again.");
    }
  }
  if (!folder_.weight_map.empty() && result.indexed.size() != tensors_in_[file])
    fail_missing(file, header);
  if (!strays.empty())
    result.warnings.push_back(fmt::format(
        "{}: {} that the index does not name {} left out: {}", shown(folder_.files[file].string()),
        counted(strays.size(), "tensor"), agreeing(strays.size(), "is", "are"), listed(strays)));
  return result;
}

void IndexCheck::fail_missing(std::size_t file, safetensors::Header const& header) const {
  std::unordered_set<std::string_view> present;
  for (FileTensor const& tensor : header.tensors) present.insert(tensor.name);
  std::vector<std::string> missing;
  for (auto const& [tensor, name] : folder_.weight_map)
    if (folder_.files[file] == name.text() && !present.contains(tensor))
      missing.push_back(shown(tensor));
  fail(
      ErrorKind::source,
      "{}: {} of the {} tensors that the index places here are missing: {}. Download the file and the index again.",
      (folder_.path / folder_.files[file]).string(), missing.size(), tensors_in_[file],
      listed(missing));
}

FileCheck check_against_index(Folder const& folder, std::size_t file,
                              safetensors::Header const& header) {
  return IndexCheck(folder).check(file, header);
}

std::vector<std::filesystem::path> numbered_files(std::filesystem::path const& folder,
                                                  std::vector<std::string> const& names) {
  if (names.empty())
    fail(ErrorKind::source, "{}: holds no *.safetensors file. Name the folder with the weights.",
         folder.string());
  // "model-00002-of-00003.safetensors": of each stem and count, the numbers that are there.
  std::map<std::pair<std::string, std::size_t>, std::set<std::size_t>> numbers;
  std::regex const pattern("(.*-)([0-9]{1,9})-of-([0-9]{1,9})\\.safetensors");
  for (std::string const& name : names)
    if (std::smatch match; std::regex_match(name, match, pattern))
      numbers[{match[1], std::stoul(match[3])}].insert(std::stoul(match[2]));
  for (auto const& [shards, found] : numbers)
    if (found.size() < shards.second)
      fail(ErrorKind::source,
           "{}: holds {} of the {} files {}*-of-{}. Fetch the others too, or remove those of "
           "another save or download.",
           folder.string(), found.size(), shards.second, shards.first, shards.second);
  return {names.begin(), names.end()};
}

}  // namespace reshard::huggingface
