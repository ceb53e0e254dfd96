#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <utility>

#include <simdjson.h>

#include "core/base/text/json.hpp"
#include "core/containers/safetensors/rules.hpp"

namespace reshard::safetensors {
namespace {

namespace od = simdjson::ondemand;

std::string_view kind_of(od::json_type type) {
  switch (type) {
    case od::json_type::array: return "an array";
    case od::json_type::object: return "an object";
    case od::json_type::number: return "a number";
    case od::json_type::string: return "a string";
    case od::json_type::boolean: return "true or false";
    case od::json_type::null: return "null";
  }
  return "something else";
}

/// One pass over the text, from front to back, without a tree in between: the memory of a header is
/// its text, an index of its punctuation and its tensors. The parser does not recurse, so deep
/// nesting is harmless.
class HeaderJson {
 public:
  HeaderJson(simdjson::padded_string_view json, std::string_view place)
      : json_(json), place_(place) {}

  Header read() {
    open();
    od::object root;
    require(document_.get_object().get(root));
    Header header;
    header.tensors.reserve(std::min<std::size_t>(json_.size() / 128, 1 << 20));
    for (auto member : root) {
      od::field field;
      require(std::move(member).get(field));
      std::string_view const name = key_of(field);
      if (name == metadata_name)
        header.metadata = metadata(field.value());
      else
        header.tensors.push_back(tensor(name, field.value()));
    }
    char const* rest = nullptr;
    if (document_.current_location().get(rest) == simdjson::SUCCESS)
      fail(ErrorKind::source,
           "{}: text follows the header's object at offset {}, expected only spaces. {}", place_,
           offset_of(rest), damaged);
    return header;
  }

 private:
  static constexpr std::string_view damaged = "The file is damaged: compare it with the original.";
  enum Field : unsigned { dtype_field = 1, shape_field = 2, offsets_field = 4, all_fields = 7 };

  void open() {
    require(parser_.allocate(json_.size()));
    require(parser_.iterate(json_).get(document_));
  }

  /// Every step of the parser passes here: a syntax error anywhere ends the reading.
  void require(simdjson::error_code error) {
    if (error == simdjson::SUCCESS) return;
    if (error == simdjson::MEMALLOC)
      fail(ErrorKind::resources,
           "{}: no memory to parse a header of {} bytes. Give this rank more memory.", place_,
           json_.size());
    char const* at = nullptr;
    bool const known = opened_ && document_.current_location().get(at) == simdjson::SUCCESS;
    std::string_view why = simdjson::error_message(error);
    if (why.ends_with('.')) why.remove_suffix(1);
    fail(ErrorKind::source, "{}: the header is not valid JSON{}: {}. {}", place_,
         known ? fmt::format(" near offset {}", offset_of(at)) : "", why, damaged);
  }

  std::uint64_t offset_of(char const* at) const {
    return length_bytes + static_cast<std::uint64_t>(at - json_.data());
  }

  std::string_view key_of(od::field& field) {
    opened_ = true;
    std::string_view name;
    require(field.unescaped_key().get(name));
    if (name.size() > largest_name_bytes)
      fail(ErrorKind::source, "{}: the name '{}' has {} bytes, at most {} are allowed. {}", place_,
           shown(name), name.size(), largest_name_bytes, damaged);
    return name;
  }

  void expect(od::value& value, od::json_type wanted, std::string_view owner,
              std::string_view what) {
    od::json_type type{};
    require(value.type().get(type));
    if (type == wanted) return;
    fail(ErrorKind::source, "{}, {}: {} is {}, expected {}. {}", place_, owned(owner), what,
         kind_of(type), kind_of(wanted), damaged);
  }

  static std::string owned(std::string_view owner) {
    return owner == metadata_name ? std::string(owner) : fmt::format("tensor '{}'", shown(owner));
  }

  /// Real files hold `"__metadata__": null`.
  bool is_null(od::value& value) {
    od::json_type type{};
    require(value.type().get(type));
    if (type != od::json_type::null) return false;
    bool null = false;
    require(value.is_null().get(null));
    if (!null) require(simdjson::N_ATOM_ERROR);
    return true;
  }

  std::vector<std::pair<std::string, std::string>> metadata(od::value value) {
    if (std::exchange(has_metadata_, true))
      fail(ErrorKind::source, "{}: the name {} appears twice in the header. {}", place_,
           metadata_name, damaged);
    std::vector<std::pair<std::string, std::string>> entries;
    if (is_null(value)) return entries;
    expect(value, od::json_type::object, metadata_name, "the value");
    od::object object;
    require(value.get_object().get(object));
    for (auto member : object) {
      od::field field;
      require(std::move(member).get(field));
      std::string key(key_of(field));
      expect(field.value(), od::json_type::string, metadata_name, fmt::format("'{}'", shown(key)));
      std::string_view text;
      require(field.value().get_string().get(text));
      if (entries.size() == largest_metadata_entries)
        fail(ErrorKind::source, "{}: {} has more than {} entries. {}", place_, metadata_name,
             largest_metadata_entries, damaged);
      entries.emplace_back(std::move(key), text);
    }
    check_keys(entries);
    return entries;
  }

  void check_keys(std::vector<std::pair<std::string, std::string>> const& entries) const {
    std::vector<std::string_view> keys;
    for (auto const& [key, text] : entries) keys.push_back(key);
    std::ranges::sort(keys);
    auto const twice = std::ranges::adjacent_find(keys);
    if (twice != keys.end())
      fail(ErrorKind::source, "{}, {}: the key '{}' appears twice. {}", place_, metadata_name,
           shown(*twice), damaged);
  }

  FileTensor tensor(std::string_view name, od::value value) {
    expect(value, od::json_type::object, name, "the value");
    od::object object;
    require(value.get_object().get(object));
    FileTensor tensor;
    tensor.name = name;
    std::uint64_t end = 0;
    unsigned seen = 0;
    for (auto member : object) {
      od::field field;
      require(std::move(member).get(field));
      unsigned const which = field_of(key_of(field), name);
      if ((seen & which) != 0)
        fail(ErrorKind::source, "{}, tensor '{}': a field appears twice: {}. {}", place_,
             shown(name), field_name(which), damaged);
      seen |= which;
      if (which == dtype_field) tensor.dtype = dtype(field.value(), name);
      if (which == shape_field) tensor.shape = shape(field.value(), name);
      if (which == offsets_field) std::tie(tensor.offset_bytes, end) = offsets(field.value(), name);
    }
    for (unsigned const which : {dtype_field, shape_field, offsets_field})
      if ((seen & which) == 0)
        fail(ErrorKind::source, "{}, tensor '{}': the field {} is missing. {}", place_, shown(name),
             field_name(which), damaged);
    tensor.size_bytes = size_of(tensor, end);
    if (tensor.dtype == DType::f4 && !tensor.shape.empty() && tensor.shape.back() % 2 == 0) {
      tensor.dtype = DType::f4_x2;
      tensor.shape.back() /= 2;
    }
    return tensor;
  }

  static std::string_view field_name(unsigned which) {
    return which == dtype_field   ? "\"dtype\""
           : which == shape_field ? "\"shape\""
                                  : "\"data_offsets\"";
  }

  unsigned field_of(std::string_view key, std::string_view name) const {
    if (key == "dtype") return dtype_field;
    if (key == "shape") return shape_field;
    if (key == "data_offsets") return offsets_field;
    fail(
        ErrorKind::source,
        "{}, tensor '{}': unknown field '{}', expected \"dtype\", \"shape\" and \"data_offsets\". {}",
        place_, shown(name), shown(key),
        "The file is of another version of the format or damaged.");
  }

  DType dtype(od::value& value, std::string_view name) {
    expect(value, od::json_type::string, name, "\"dtype\"");
    std::string_view word;
    require(value.get_string().get(word));
    auto const found = dtype_from_name(word);
    if (!found || *found >= DType::c128)
      fail(ErrorKind::source,
           "{}, tensor '{}': the format has no dtype '{}'. Check the file, or use a newer reshard.",
           place_, shown(name), shown(word));
    return *found;
  }

  /// A number as rule 11 requires it. `what` names it in messages.
  std::uint64_t whole_number(od::value& value, std::string_view name, std::string_view what) {
    expect(value, od::json_type::number, name, what);
    std::uint64_t number = 0;
    if (value.get_uint64().get(number) == simdjson::SUCCESS) return number;
    std::string_view const token = value.raw_json_token();
    fail(ErrorKind::source,
         "{}, tensor '{}': {} holds {}, expected an integer from 0 to 18446744073709551615. {}",
         place_, shown(name), what, shown(token.substr(0, token.find_last_not_of(" \t\r\n") + 1)),
         damaged);
  }

  std::vector<Index> shape(od::value& value, std::string_view name) {
    expect(value, od::json_type::array, name, "\"shape\"");
    od::array array;
    require(value.get_array().get(array));
    std::vector<Index> extents;
    for (auto item : array) {
      od::value element;
      require(std::move(item).get(element));
      std::uint64_t const extent = whole_number(element, name, "\"shape\"");
      if (extent > static_cast<std::uint64_t>(std::numeric_limits<Index>::max()))
        fail(ErrorKind::source,
             "{}, tensor '{}': a dimension is {}, at most {} can be addressed. {}", place_,
             shown(name), extent, std::numeric_limits<Index>::max(), damaged);
      if (extents.size() == largest_rank)
        fail(ErrorKind::source, "{}, tensor '{}': \"shape\" has more than {} dimensions. {}",
             place_, shown(name), largest_rank, damaged);
      extents.push_back(static_cast<Index>(extent));
    }
    return extents;
  }

  std::pair<std::uint64_t, std::uint64_t> offsets(od::value& value, std::string_view name) {
    expect(value, od::json_type::array, name, "\"data_offsets\"");
    od::array array;
    require(value.get_array().get(array));
    std::array<std::uint64_t, 2> bounds{};
    std::size_t count = 0;
    for (auto item : array) {
      od::value element;
      require(std::move(item).get(element));
      std::uint64_t const bound = whole_number(element, name, "\"data_offsets\"");
      if (count < bounds.size()) bounds[count] = bound;
      if (++count > bounds.size()) break;
    }
    if (count != bounds.size())
      fail(ErrorKind::source,
           "{}, tensor '{}': \"data_offsets\" has {} numbers, expected 2: begin and end. {}",
           place_, shown(name), count < bounds.size() ? fmt::format("{}", count) : "more than 2",
           damaged);
    if (bounds[1] < bounds[0])
      fail(ErrorKind::source,
           "{}, tensor '{}': \"data_offsets\" [{}, {}] ends before it begins. {}", place_,
           shown(name), bounds[0], bounds[1], damaged);
    return {bounds[0], bounds[1]};
  }

  std::uint64_t size_of(FileTensor const& tensor, std::uint64_t end) const {
    auto const needed = packed_bytes(tensor.dtype, tensor.shape);
    if (!needed)
      fail(ErrorKind::source,
           "{}, tensor '{}': shape {} of {} is not a whole number of bytes below 2^61. {}", place_,
           shown(tensor.name), shown_shape(tensor.shape), reshard::name(tensor.dtype), damaged);
    std::uint64_t const given = end - tensor.offset_bytes;
    if (*needed != given)
      fail(
          ErrorKind::source,
          "{}, tensor '{}': the header gives it bytes [{}, {}), {} bytes, but shape {} of {} needs {}. {}",
          place_, shown(tensor.name), tensor.offset_bytes, end, given, shown_shape(tensor.shape),
          reshard::name(tensor.dtype), *needed, damaged);
    return given;
  }

  simdjson::padded_string_view json_;
  std::string_view place_;
  od::parser parser_;
  od::document document_;
  bool opened_ = false;  ///< the document has a current location only once its root is open
  bool has_metadata_ = false;
};

}  // namespace

Header header_from_json(simdjson::padded_string_view json, std::string_view place) {
  return HeaderJson(json, place).read();
}

std::string shown(std::string_view name) {
  constexpr std::size_t most = 200;
  std::string quoted = json_quoted(name.substr(0, most));
  return quoted.substr(1, quoted.size() - 2) + (name.size() > most ? "…" : "");
}

}  // namespace reshard::safetensors
