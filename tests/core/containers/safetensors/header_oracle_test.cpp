// The parser against a slow one that goes through a JSON tree and checks the data section byte by
// byte.

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "core/base/text/json.hpp"
#include "tests/core/containers/safetensors/header_files.hpp"

namespace reshard::safetensors {
namespace {

struct Expected {
  std::string dtype;
  std::vector<Index> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};
using ExpectedTensors = std::map<std::string, Expected>;

/// A '-' outside strings: JSON has negative zero, the format has no sign at all.
bool has_sign(std::string_view json) {
  bool in_string = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    if (in_string && json[i] == '\\') {
      ++i;
    } else if (json[i] == '"') {
      in_string = !in_string;
    } else if (!in_string && json[i] == '-') {
      return true;
    }
  }
  return false;
}

std::optional<std::vector<Index>> whole_numbers(Json const* list) {
  if (list == nullptr || list->items() == nullptr) return std::nullopt;
  std::vector<Index> numbers;
  for (Json const& item : *list->items()) {
    if (item.integer() == nullptr || *item.integer() < 0) return std::nullopt;
    numbers.push_back(*item.integer());
  }
  return numbers;
}

std::optional<Expected> slow_tensor(Json const& entry) {
  Json const* const dtype = entry.find("dtype");
  auto shape = whole_numbers(entry.find("shape"));
  auto const offsets = whole_numbers(entry.find("data_offsets"));
  if (entry.members() == nullptr || entry.members()->size() != 3 || dtype == nullptr ||
      dtype->text() == nullptr)
    return std::nullopt;
  if (!shape || !offsets || offsets->size() != 2 || shape->size() > 64) return std::nullopt;
  auto const known = dtype_from_name(*dtype->text());
  if (!known || *known >= DType::c128) return std::nullopt;
  unsigned __int128 total_bits = static_cast<unsigned>(bits(*known));
  bool const empty = std::ranges::count(*shape, 0) != 0;
  for (Index const extent : *shape) {
    total_bits *= empty ? 0 : static_cast<std::uint64_t>(extent);
    if (total_bits >> 64 != 0) return std::nullopt;
  }
  auto const begin = static_cast<std::uint64_t>((*offsets)[0]);
  auto const end = static_cast<std::uint64_t>((*offsets)[1]);
  if (end < begin || total_bits != static_cast<unsigned __int128>(end - begin) * 8)
    return std::nullopt;
  bool const in_pairs = *known == DType::f4 && !shape->empty() && shape->back() % 2 == 0;
  if (in_pairs) shape->back() /= 2;
  return Expected{in_pairs ? "F4_X2" : *dtype->text(), *shape, begin, end};
}

bool is_metadata(Json const& value) {
  if (value.is_null()) return true;
  return value.members() != nullptr &&
         std::ranges::all_of(*value.members(),
                             [](auto const& member) { return member.second.text() != nullptr; });
}

bool covers(ExpectedTensors const& tensors, std::uint64_t data_bytes) {
  std::vector<int> owners(data_bytes);
  for (auto const& [name, tensor] : tensors) {
    if (tensor.end > data_bytes) return false;
    for (std::uint64_t at = tensor.begin; at < tensor.end; ++at) ++owners[at];
  }
  if (!std::ranges::all_of(owners, [](int count) { return count == 1; })) return false;
  // An empty tensor lies at an edge, never inside another.
  return std::ranges::all_of(tensors, [&](auto const& empty) {
    return empty.second.begin != empty.second.end ||
           std::ranges::none_of(tensors, [&](auto const& other) {
             return other.second.begin < empty.second.begin &&
                    empty.second.begin < other.second.end;
           });
  });
}

std::optional<ExpectedTensors> slow_parse(std::string_view file) {
  std::uint64_t length = 0;
  if (file.size() < 8) return std::nullopt;
  std::memcpy(&length, file.data(), 8);
  if (length > file.size() - 8 || length == 0 || file[8] != '{') return std::nullopt;
  std::string_view json = file.substr(8, length);
  json = json.substr(0, json.find_last_not_of(' ') + 1);
  if (json.back() != '}' || has_sign(json)) return std::nullopt;
  Json tree;
  try {
    tree = parse_json(json, "slow");
  } catch (Error const&) {
    return std::nullopt;
  }
  ExpectedTensors tensors;
  for (auto const& [name, entry] : *tree.members()) {
    if (name == "__metadata__") {
      if (!is_metadata(entry)) return std::nullopt;
      continue;
    }
    auto const tensor = slow_tensor(entry);
    if (!tensor) return std::nullopt;
    tensors.emplace(name, *tensor);
  }
  if (!covers(tensors, file.size() - 8 - length)) return std::nullopt;
  return tensors;
}

void expect_agreement(std::string const& file, std::string const& what) {
  auto const slow = slow_parse(file);
  auto const error = refusal(file);
  ASSERT_EQ(error.has_value(), !slow.has_value())
      << what << "\n"
      << (error ? error->sentence() : "accepted") << "\n"
      << file.substr(8);
  if (error) {
    EXPECT_EQ(error->kind(), ErrorKind::source) << error->sentence();
    return;
  }
  Header const header = parse(file);
  ASSERT_EQ(header.tensors.size(), slow->size()) << what;
  std::uint64_t at = header.header_bytes;
  for (FileTensor const& tensor : header.tensors) {
    Expected const& expected = slow->at(tensor.name);
    EXPECT_EQ(name(tensor.dtype), expected.dtype) << what;
    EXPECT_EQ(tensor.shape, expected.shape) << what;
    EXPECT_EQ(tensor.offset_bytes, header.header_bytes + expected.begin) << what;
    EXPECT_EQ(tensor.size_bytes, expected.end - expected.begin) << what;
    EXPECT_EQ(tensor.offset_bytes, at) << what << ": not in the order of the bytes";
    at += tensor.size_bytes;
  }
}

class RandomFiles {
 public:
  explicit RandomFiles(unsigned seed) : random_(seed) {}

  std::size_t below(std::size_t limit) {
    return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random_);
  }

  /// A valid file: tensors of all dtypes, entries in any order, white space anywhere that the
  /// format allows it.
  std::string next() {
    std::vector<std::string> entries;
    if (below(2) == 0)
      entries.push_back(R"("__metadata__":)" +
                        pick({"{}", "null", R"({"format":"pt"})", R"({"a":"1","b":"\u00e9"})"}));
    std::uint64_t end = 0;
    std::size_t const count = below(7);
    for (std::size_t i = 0; i < count; ++i) entries.push_back(entry(i, end));
    std::ranges::shuffle(entries, random_);
    std::string json = "{";
    for (std::size_t i = 0; i < entries.size(); ++i)
      json += space() + entries[i] + space() + (i + 1 < entries.size() ? "," : "");
    return file_text(json + space() + "}" + std::string(below(9), ' '), end);
  }

 private:
  std::string pick(std::vector<std::string> const& choices) {
    return choices[below(choices.size())];
  }
  std::string space() { return pick({"", "", "", " ", "\n", "\t ", "\r\n"}); }

  std::string entry(std::size_t i, std::uint64_t& end) {
    auto const dtype = static_cast<DType>(below(static_cast<std::size_t>(DType::c128)));
    std::vector<Index> shape;
    for (std::size_t d = below(4); d > 0; --d) shape.push_back(static_cast<Index>(below(5)));
    if (bits(dtype) < 8) shape.push_back(8);
    std::string extents;
    std::uint64_t bytes = static_cast<std::uint64_t>(bits(dtype));
    for (Index const extent : shape) {
      extents += (extents.empty() ? "" : ",") + space() + fmt::format("{}", extent);
      bytes *= static_cast<std::uint64_t>(extent);
    }
    bytes /= 8;
    std::vector<std::string> fields = {
        fmt::format(R"("dtype":{}"{}")", space(), name(dtype)),
        fmt::format(R"("shape":[{}])", extents),
        fmt::format(R"("data_offsets":[{}{},{}])", space(), end, end + bytes)};
    std::ranges::shuffle(fields, random_);
    end += bytes;
    return fmt::format(R"("{}{}":{{{},{},{}}})", pick({"w", "\\u0077", "\\\"", "é.", ""}), i,
                       fields[0], fields[1], fields[2]);
  }

  std::mt19937 random_;
};

constexpr unsigned seed = 20260801;

TEST(SafetensorsOracle, RandomValidHeadersReadAsTheSlowParserReadsThem) {
  RandomFiles files(seed);
  for (int i = 0; i < 4000; ++i) {
    std::string const file = files.next();
    ASSERT_TRUE(slow_parse(file)) << "seed " << seed << ", case " << i << ": " << file.substr(8);
    expect_agreement(file, fmt::format("seed {}, case {}", seed, i));
    if (HasFatalFailure()) return;
  }
}

TEST(SafetensorsOracle, EveryByteFlipIsRefusedOrReadAsTheSlowParserReadsIt) {
  std::string const json =
      R"({"__metadata__":{"k":"v"},"w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("x":{"dtype":"BF16","shape":[0],"data_offsets":[8,8]},"y":{"dtype":"U8","shape":[10],"data_offsets":[8,18]}} )";
  std::string const whole = file_text(json, 18);
  for (std::size_t at = 0; at < 8 + json.size(); ++at)
    for (int pattern = 1; pattern < 256; ++pattern) {
      std::string file = whole;
      file[at] = static_cast<char>(file[at] ^ pattern);
      expect_agreement(file, fmt::format("byte {} xor {}", at, pattern));
      if (HasFatalFailure()) return;
    }
}

TEST(SafetensorsOracle, RandomMutationsAreRefusedOrReadAsTheSlowParserReadsThem) {
  RandomFiles files(seed + 1);
  std::vector<std::string> const pieces = {"[",
                                           "]",
                                           "{",
                                           "}",
                                           ",",
                                           ":",
                                           "\"",
                                           "0",
                                           "1",
                                           "9",
                                           "-",
                                           ".",
                                           "e",
                                           " ",
                                           "null",
                                           "true",
                                           "\\",
                                           "\"a\":",
                                           "18446744073709551615"};
  for (int i = 0; i < 40'000; ++i) {
    std::string file = files.next();
    for (std::size_t edits = 1 + files.below(3); edits > 0; --edits) {
      std::size_t const at = 8 + files.below(file.size() - 8);
      std::string const& piece = pieces[files.below(pieces.size())];
      std::size_t const removed = files.below(3);
      file.replace(at, std::min(removed, file.size() - at), piece);
    }
    std::uint64_t const length = files.below(4) == 0                    ? files.below(file.size())
                                 : file.rfind('}') == std::string::npos ? 0
                                                                        : file.rfind('}') + 1 - 8;
    std::memcpy(file.data(), &length, 8);
    expect_agreement(file, fmt::format("seed {}, case {}", seed + 1, i));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace reshard::safetensors
