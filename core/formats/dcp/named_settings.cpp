#include "core/formats/dcp/named_settings.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>

#include "core/base/text/wire.hpp"
#include "core/containers/torch/torch_file.hpp"
#include "core/formats/dcp/named_states.hpp"

namespace reshard::dcp {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::no_node;
using pickle::NodeId;

constexpr std::string_view members_field = "params";
/// The longest value of a parameter group; lists of names are the long ones.
constexpr std::uint64_t largest_value_bytes = std::uint64_t{64} << 20;

/// A value of the checkpoint: an object, or a tensor of one element.
struct Value {
  std::string_view name;
  StoredObject const* object = nullptr;
  std::size_t tensor = 0;
  std::string pickled;  ///< "" where it is no number or plain value
};

// --- reading
// --------------------------------------------------------------------------------------

class ValueReader {
 public:
  ValueReader(Checkpoint const& checkpoint, StampedFiles& files)
      : checkpoint_(checkpoint), files_(files) {}

  std::string pickled(Value const& value) {
    Document const document = value.object != nullptr ? read(*value.object) : read(value.tensor);
    return document.root == no_node ? std::string() : pickle::dump(document);
  }

 private:
  Document read(StoredObject const& object) {
    if (object.item.size_bytes > largest_value_bytes)
      fail(ErrorKind::source,
           "{}: '{}' has {} bytes, more than a setting of an optimizer can have. The file is "
           "damaged: restore it, or set source.optimizer = \"drop\".",
           checkpoint_.place, object.name, object.item.size_bytes);
    auto const file = files_.open(object.item.file);
    TorchFile torch = read_torch_file({*file, object.item.offset_bytes, object.item.size_bytes});
    return torch.document.tensors.empty() ? std::move(torch.document) : Document();
  }

  Document read(std::size_t number) {
    StoredTensor const& tensor = checkpoint_.stored.tensors[number];
    Document result;
    if (!tensor.shape.empty() || tensor.chunk_count != 1) return result;
    std::uint32_t const chunk = tensor.first_chunk;
    auto const file = files_.open(checkpoint_.stored.chunks[chunk].item.file);
    std::array<std::byte, 8> bytes{};
    auto const size = static_cast<std::size_t>(bits(tensor.dtype)) / 8;
    if (size > bytes.size()) return result;
    file->read_at(checkpoint_.stored.payload_offset_bytes(chunk),
                  std::span<std::byte>(bytes).first(size));
    if (auto const value = number_of(tensor.dtype, bytes)) result.root = result.add_real(*value);
    return result;
  }

  template <class T>
  static double as(std::array<std::byte, 8> const& bytes) {
    T value{};
    std::memcpy(&value, bytes.data(), sizeof value);
    return static_cast<double>(value);
  }

  static std::optional<double> number_of(DType dtype, std::array<std::byte, 8> const& bytes) {
    switch (dtype) {
      case DType::f32: return as<float>(bytes);
      case DType::f64: return as<double>(bytes);
      case DType::i32: return as<std::int32_t>(bytes);
      case DType::i64: return as<std::int64_t>(bytes);
      default: return std::nullopt;
    }
  }

  Checkpoint const& checkpoint_;
  StampedFiles& files_;
};

/// Fills Value::pickled, each rank those of a run of values.
void read_values(Checkpoint const& checkpoint, std::vector<Value>& values, StampedFiles& files,
                 HeaderExchange const& exchange) {
  auto const ranks = static_cast<std::size_t>(exchange.size());
  auto const first_of = [&](std::size_t rank) { return values.size() * rank / ranks; };
  WireWriter mine;
  exchange.together([&] {
    ValueReader reader(checkpoint, files);
    auto const rank = static_cast<std::size_t>(exchange.rank());
    for (std::size_t v = first_of(rank); v < first_of(rank + 1); ++v)
      mine.put(reader.pickled(values[v]));
  });
  std::size_t next = 0;
  for (std::string const& packed : exchange.all_gather(mine.bytes()))
    for (WireReader in(packed, "the settings that a rank read"); !in.empty(); in.check())
      values[next++].pickled = in.get<std::string>();
  RESHARD_EXPECT(next == values.size());
}

// --- groups
// ---------------------------------------------------------------------------------------

/// Puts the values together to a list of groups.
class Groups {
 public:
  Groups(std::set<std::string_view> const& places, std::string const& trainer,
         std::span<Value const> values)
      : places_(places), trainer_(trainer) {
    document_.root = document_.add_list();
    for (Value const& value : values) sort(value);
    for (auto const& [group, fields] : numbered_) add_numbered(fields);
    for (auto const& [place, fields] : by_parameter_)
      for (auto const& [parameter, settings] : fields) add_alike(parameter, settings);
  }

  void into(TorchOptimizer& optimizer) const {
    if (document_.at(document_.root).items.empty()) return;
    optimizer.settings = pickle::dump(document_);
    optimizer.members = members_;
  }

 private:
  using Fields = std::map<std::string_view, std::string_view>;  ///< to pickled values

  static Document parsed(std::string_view pickled) {
    return pickle::parse(std::as_bytes(std::span(pickled)), "a setting of an optimizer");
  }

  static bool is_number(std::string_view word) {
    return !word.empty() && word.find_first_not_of("0123456789") == std::string_view::npos;
  }

  void sort(Value const& value) {
    std::string_view const place = *std::ranges::find_if(places_, [&](std::string_view one) {
      return value.name.starts_with(one) &&
             value.name.substr(one.size()).starts_with(settings_word);
    });
    std::string_view rest = value.name.substr(place.size() + settings_word.size());
    if (rest.empty()) return value.pickled.empty() ? void() : add_list(parsed(value.pickled));
    rest.remove_prefix(1);
    std::size_t const dot = rest.rfind('.');
    if (dot == std::string_view::npos) return;
    std::string_view const owner = rest.substr(0, dot);
    std::string_view const field = rest.substr(dot + 1);
    // A parameter of a Sequential may be called "0.weight", never "0".
    if (is_number(owner))
      numbered_[{place, owner}].emplace(field, value.pickled);
    else
      by_parameter_[place][owner].emplace(field, value.pickled);
  }

  /// The names of the parameters in a value "params".
  std::vector<std::string> names_in(Document const& from, NodeId list) const {
    std::vector<std::string> result;
    if (list == no_node) return result;
    for (NodeId const item : from.at(list).items)
      if (from.at(item).kind == Kind::string) result.push_back(trainer_ + from.at(item).text);
    return result;
  }

  NodeId add_group(std::vector<std::string> members) {
    NodeId const group = document_.add_dict();
    document_.at(document_.root).items.push_back(group);
    members_.push_back(std::move(members));
    return group;
  }

  void add_list(Document const& from) {
    if (from.root == no_node || from.at(from.root).kind != Kind::list) return;
    for (NodeId const one : from.at(from.root).items) {
      NodeId const group = add_group(names_in(from, from.find(one, members_field)));
      for (auto const& [field, node] : from.members(one))
        if (field != members_field) document_.set(group, field, document_.add_copy(from, node));
    }
  }

  void set_fields(NodeId group, Fields const& fields) {
    for (auto const& [field, pickled] : fields) {
      if (field == members_field || pickled.empty()) continue;
      Document const from = parsed(pickled);
      document_.set(group, field, document_.add_copy(from, from.root));
    }
  }

  void add_numbered(Fields const& fields) {
    std::vector<std::string> members;
    if (auto const names = fields.find(members_field);
        names != fields.end() && !names->second.empty()) {
      Document const from = parsed(names->second);
      members = names_in(from, from.root);
    }
    set_fields(add_group(std::move(members)), fields);
  }

  /// Parameters with equal settings are a group.
  void add_alike(std::string_view parameter, Fields const& fields) {
    auto const [known, is_new] = alike_.try_emplace(fields, members_.size());
    if (is_new) set_fields(add_group({}), fields);
    members_[known->second].push_back(trainer_ + std::string(parameter));
  }

  std::set<std::string_view> const& places_;
  std::string const& trainer_;
  Document document_;
  std::vector<std::vector<std::string>> members_;
  std::map<std::pair<std::string_view, std::string_view>, Fields> numbered_;
  std::map<std::string_view, std::map<std::string_view, Fields>> by_parameter_;
  std::map<Fields, std::size_t> alike_;
};

std::optional<double> number_in(std::string const& pickled) {
  if (pickled.empty()) return std::nullopt;
  Document const document = pickle::parse(std::as_bytes(std::span(pickled)), "a step");
  auto const& node = document.at(document.root);
  return node.kind == Kind::real ? std::optional(node.real) : std::nullopt;
}

/// Megatron counts the steps of all parameters together.
void note_steps(std::span<Value const> steps, TorchOptimizer& optimizer) {
  std::string_view first;
  for (Value const& step : steps) {
    std::optional<double> const number = number_in(step.pickled);
    if (!number) continue;
    if (!optimizer.steps) {
      optimizer.steps = number;
      first = step.name;
    } else if (*optimizer.steps != *number && optimizer.fault.empty()) {
      optimizer.fault = fmt::format(
          "'{}' is {} and '{}' is {}, but Megatron counts one step for all parameters. The "
          "files are of two saves: restore those of one. Or parameters were trained for "
          "different numbers of steps",
          first, *optimizer.steps, step.name, *number);
    }
  }
}

}  // namespace

std::shared_ptr<TorchOptimizer const> read_named_settings(Checkpoint const& checkpoint,
                                                          std::string const& prefix,
                                                          StampedFiles& files,
                                                          HeaderExchange const& exchange) {
  NamedStates const found = named_states(checkpoint.stored, prefix);
  if (found.states.empty()) return nullptr;
  std::vector<Value> values;
  for (NamedState const& step : found.steps)
    values.push_back({checkpoint.stored.tensors.name(step.tensor), nullptr, step.tensor, {}});
  for (StoredObject const& object : checkpoint.stored.objects)
    if (is_named_setting(object.name, found.places))
      values.push_back({object.name, &object, 0, {}});
  for (std::size_t const tensor : found.settings)
    values.push_back({checkpoint.stored.tensors.name(tensor), nullptr, tensor, {}});
  read_values(checkpoint, values, files, exchange);
  auto optimizer = std::make_shared<TorchOptimizer>();
  std::span<Value const> const all(values);
  note_steps(all.first(found.steps.size()), *optimizer);
  auto const settings = all.subspan(found.steps.size());
  Groups(found.places, found.trainer, settings).into(*optimizer);
  return optimizer;
}

}  // namespace reshard::dcp
