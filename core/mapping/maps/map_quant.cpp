#include <algorithm>

#include "core/base/dtype.hpp"
#include "core/mapping/maps/map_reader.hpp"

namespace reshard {
namespace {

class QuantReader {
 public:
  explicit QuantReader(MapReader const& reader) : reader_(reader) {}

  MapQuant quant(std::string const& name, toml::node const& node) const {
    MapQuant result;
    result.name = name;
    result.place = reader_.place(node);
    for (auto const& [key, member] : written_order(reader_.table(node, "a scheme"))) {
      if (key == "decode")
        result.decode = decode(*member);
      else if (key == "label")
        result.label = label(*member);
      else if (key == "when")
        result.when = reader_.expression(*member);
      else if (key == "first")
        result.first = reader_.expression(*member);
      else if (key == "zero_offset")
        result.zero_offset = reader_.expression(*member);
      else if (key == "only_values")
        result.only_values = reader_.flag(*member, key);
      else
        result.parts.push_back(part(key, *member));
    }
    auto const values = std::ranges::find(result.parts, "values", &MapQuantPart::name);
    if (result.parts.empty() || (values != result.parts.end() && values != result.parts.begin()))
      reader_.mistake(node,
                      "the first part of a scheme is `values`, the tensor that represents the "
                      "weight; a scheme without it has parts beside weights");
    return result;
  }

 private:
  QuantDecode decode(toml::node const& node) const {
    QuantDecode result;
    for (auto const& [key, member] : written_order(reader_.table(node, "decode"))) {
      if (key == "codes")
        result.codes = reader_.text(*member, key);
      else if (key == "times")
        result.times = reader_.text(*member, key);
      else if (key == "divided_by")
        result.divided_by = reader_.text(*member, key);
      else if (key == "order")
        result.order = reader_.text(*member, key);
      else if (key == "transposed")
        result.transposed = reader_.flag(*member, key);
      else if (key == "divisor")
        result.divisor = number(*member);
      else
        reader_.mistake(
            *member,
            fmt::format(
                "'{}' is not a key of decode. Known: codes, times, divided_by, order, transposed, "
                "divisor.",
                key));
    }
    return result;
  }

  QuantLabel label(toml::node const& node) const {
    QuantLabel result;
    for (auto const& [key, member] : written_order(reader_.table(node, "label"))) {
      if (key == "method")
        result.method = reader_.text(*member, key);
      else if (key == "algorithm")
        result.algorithm = reader_.text(*member, key);
      else if (key == "weights_alone")
        result.weights_alone = reader_.text(*member, key);
      else if (key == "others")
        result.others = reader_.texts(*member, key);
      else if (key == "smoothed")
        result.smoothed = reader_.text(*member, key);
      else if (key == "type")
        result.type = reader_.text(*member, key);
      else if (key == "strategy")
        result.strategy = reader_.text(*member, key);
      else if (key == "group_size")
        result.group_size = number(*member);
      else if (key == "bits")
        result.bits = number(*member);
      else
        reader_.mistake(
            *member,
            fmt::format(
                "'{}' is not a key of label. Known: method, algorithm, weights_alone, others, smoothed, "
                "type, strategy, group_size, bits.",
                key));
    }
    return result;
  }

  MapQuantPart part(std::string const& name, toml::node const& node) const {
    MapQuantPart part;
    part.name = name;
    for (auto const& [key, member] : written_order(reader_.table(node, "a part"))) {
      if (key == "name")
        part.stored = reader_.text(*member, key);
      else if (key == "dtype")
        part.dtypes = reader_.texts(*member, key);
      else if (key == "blocks")
        blocks(part.dims, *member);
      else if (key == "global_blocks")
        blocks(part.global_dims, *member);
      else if (key == "vector")
        part.vector = number(*member);
      else if (key == "optional")
        part.optional = reader_.flag(*member, key);
      else if (key == "fused")
        part.fused = reader_.flag(*member, key);
      else if (key == "when")
        part.when = reader_.expression(*member);
      else
        reader_.mistake(*member,
                        fmt::format("'{}' is not a key of a part. Known: name, dtype, blocks, "
                                    "global_blocks, vector, optional, fused, when.",
                                    key));
    }
    if (!part.global_dims.empty() && part.global_dims.size() != part.dims.size())
      reader_.mistake(node, "global_blocks has as many items as blocks");
    if (part.stored.empty() || part.dtypes.empty())
      reader_.mistake(node, "a part needs `name` and `dtype`");
    for (std::string const& dtype : part.dtypes)
      if (!dtype_from_name(dtype))
        reader_.mistake(
            node, fmt::format("'{}' is not a dtype. Use the names of safetensors: F8_E4M3, U8, …",
                              dtype));
    return part;
  }

  void blocks(std::vector<MapPartDim>& dims, toml::node const& node) const {
    auto const* array = node.as_array();
    if (array == nullptr)
      reader_.mistake(node, "blocks is a list, one item for each of the weight's last dimensions");
    for (auto const& item : *array) dims.push_back(dim(item));
  }

  /// A number that is known without a model: no key is.
  Index number(toml::node const& node) const {
    ExpressionScope scope;
    scope.key = [](std::string_view) { return std::optional<Json>(); };
    return reader_.expression(node).integer(scope);
  }

  MapPartDim dim(toml::node const& node) const {
    MapPartDim dim;
    std::string const text = node.is_string() ? reader_.text(node, "a block") : std::string();
    if (text == "all" || text == "one") {
      dim.kind = text == "all" ? PartDim::Kind::all : PartDim::Kind::one;
    } else if (auto const mark = text.find_first_of(":~"); mark != std::string::npos) {
      dim.kind = text[mark] == ':' ? PartDim::Kind::split : PartDim::Kind::words;
      dim.block = Expression::parse(text.substr(0, mark), reader_.place(node));
      dim.inner = Expression::parse(text.substr(mark + 1), reader_.place(node));
    } else {
      dim.block = reader_.expression(node);
    }
    return dim;
  }

  MapReader const& reader_;
};

}  // namespace

MapQuant read_quant(MapReader const& reader, std::string const& name, toml::node const& node) {
  return QuantReader(reader).quant(name, node);
}

}  // namespace reshard
