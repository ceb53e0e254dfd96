#include "core/formats/megatron/mcore/args.hpp"

#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/containers/torch/torch_types.hpp"
#include "core/formats/megatron/mcore/mapping_size.hpp"

namespace reshard::megatron {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::no_node;
using pickle::Node;
using pickle::NodeId;

/// Values nest a few levels; a pickle may share nodes, so its tree can be far larger than its
/// graph: both are bounded.
constexpr int deepest = 32;
constexpr std::size_t most_values = 1'000'000;
constexpr std::size_t most_text_bytes = std::size_t{64} << 20U;

constexpr std::string_view dtype_prefix = "torch.";

class FactReader {
 public:
  explicit FactReader(Document const& document) : document_(document) {}

  std::optional<Json> value(NodeId id, int depth) {
    if (id == no_node || depth > deepest) return std::nullopt;
    Node const& node = document_.at(id);
    count(node.kind == Kind::string ? node.text : std::string_view());
    switch (node.kind) {  // in place: moving a Json into an optional warns falsely under GCC 12's
                          // sanitizers
      case Kind::none: return std::optional<Json>(std::in_place);
      case Kind::boolean: return std::optional<Json>(std::in_place, node.boolean);
      case Kind::integer: return std::optional<Json>(std::in_place, node.integer);
      case Kind::real: return std::optional<Json>(std::in_place, node.real);
      case Kind::string: return std::optional<Json>(std::in_place, node.text);
      case Kind::tuple:
      case Kind::list: return sequence(node, depth);
      case Kind::dict: return mapping(id, depth);
      case Kind::global: return dtype(id);
      case Kind::reduce: return object(id, node, depth);
      default: return std::nullopt;
    }
  }

 private:
  void count(std::string_view text) {
    text_bytes_ += text.size();
    if (++values_ > most_values || text_bytes_ > most_text_bytes)
      fail(ErrorKind::source,
           "args: more than {} values or {} bytes of strings. The file is damaged.", most_values,
           most_text_bytes);
  }

  std::optional<Json> sequence(Node const& node, int depth) {
    Json result = Json::array();
    for (NodeId const item : node.items) {
      auto fact = value(item, depth + 1);
      if (!fact) return std::nullopt;  // a shortened list would be a wrong fact
      result.push(std::move(*fact));
    }
    return result;
  }

  std::optional<Json> mapping(NodeId id, int depth) {
    auto const members = document_.members(id);
    if (members.size() != mapping_size(document_, id)) return std::nullopt;  // keys of another kind
    Json::Object result;
    for (auto const& [key, item] : members) {
      count(key);
      if (auto fact = value(item, depth + 1)) result.emplace_back(key, std::move(*fact));
    }
    return Json(std::move(result));
  }

  std::optional<Json> dtype(NodeId id) const {
    auto const [module, name] = document_.class_of(id);
    if (module != "torch") return std::nullopt;
    return Json(fmt::format("torch.{}", name));
  }

  /// Enum members are Class(value), or getattr(Class, "member") from Python 3.11.
  std::optional<Json> object(NodeId id, Node const& node, int depth) {
    auto const [module, name] = document_.class_of(id);
    if (mapping_size(document_, id)) return mapping(id, depth);
    static constexpr std::array<std::string_view, 6> no_enums = {
        "torch", "numpy", "collections", "pathlib", "pathlib._local", "argparse"};
    if (module.empty() || std::find(no_enums.begin(), no_enums.end(), module) != no_enums.end())
      return std::nullopt;
    if (node.arguments == no_node || node.state != no_node) return std::nullopt;
    auto const& arguments = document_.at(node.arguments).items;
    if (name == "getattr" && arguments.size() == 2) return enum_member(arguments[0], arguments[1]);
    if (module == "builtins" || module == "__builtin__" || arguments.size() != 1)
      return std::nullopt;
    Node const& argument = document_.at(arguments[0]);
    if (argument.kind == Kind::integer)
      return Json(fmt::format("{}.{}.{}", module, name, argument.integer));
    if (argument.kind == Kind::string)
      return Json(fmt::format("{}.{}.{}", module, name, argument.text));
    return std::nullopt;
  }

  std::optional<Json> enum_member(NodeId of, NodeId member) const {
    auto const [module, name] = document_.class_of(of);
    if (module.empty() || document_.at(member).kind != Kind::string) return std::nullopt;
    return Json(fmt::format("{}.{}.{}", module, name, document_.at(member).text));
  }

  Document const& document_;
  std::size_t values_ = 0;
  std::size_t text_bytes_ = 0;
};

NodeId add_value(Document& document, std::string_view key, Json const& value) {
  if (value.is_null()) return document.add_none();
  if (auto const* boolean = value.boolean()) return document.add_bool(*boolean);
  if (auto const* integer = value.integer()) return document.add_int(*integer);
  if (auto const* real = value.real()) return document.add_real(*real);
  if (auto const* text = value.text()) {
    if (key.ends_with("dtype") && text->starts_with(dtype_prefix) &&
        pickle::dtype_from_torch_name(text->substr(dtype_prefix.size())))
      return document.add_global("torch", text->substr(dtype_prefix.size()));
    return document.add_string(*text);
  }
  if (auto const* members = value.members()) {
    NodeId const dict = document.add_dict();
    for (auto const& [name, member] : *members)
      document.set(dict, name, add_value(document, name, member));
    return dict;
  }
  auto const* items = value.items();
  std::vector<NodeId> nodes;
  for (auto const& item : *items) nodes.push_back(add_value(document, key, item));
  return document.add_list(std::move(nodes));
}

/// The name of an argument in newer releases.
struct NewerName {
  std::string_view name;
  std::string_view newer;
};
/// Since 0.17 arguments have the names of TransformerConfig.
constexpr std::array<NewerName, 2> newer_names{
    {{"norm_epsilon", "layernorm_epsilon"},
     {"apply_layernorm_1p", "layernorm_zero_centered_gamma"}}};

/// YaRN of models without latent attention has its settings in arguments of these names since 0.19,
/// and where they are None these values (_apply_yarn_config_from_args of megatron.training).
struct YarnArg {
  std::string_view name;
  std::string_view newer;
  Json usual;
};

std::array<YarnArg, 7> yarn_args() {
  return {
      {{"yarn_rotary_scaling_factor", "rotary_scaling_factor", Json(1.0)},
       {"yarn_original_max_position_embeddings", "yarn_original_max_position_embeddings",
        Json(4096)},
       {"yarn_beta_fast", "yarn_beta_fast", Json(32.0)},
       {"yarn_beta_slow", "yarn_beta_slow", Json(1.0)},
       {"yarn_mscale", "mscale", Json(1.0)},
       {"yarn_mscale_all_dim", "mscale_all_dim", Json(0.0)},
       {"yarn_correction_range_round_to_int", "yarn_correction_range_round_to_int", Json(true)}}};
}

void name_yarn_as_older(Json& args) {
  Json const* const position = args.find("position_embedding_type");
  Json const* const latent = args.find("multi_latent_attention");
  if (position == nullptr || position->text() == nullptr || *position->text() != "yarn" ||
      (latent != nullptr && latent->boolean() != nullptr && *latent->boolean()) ||
      args.find("yarn_original_max_position_embeddings") == nullptr ||
      args.find("yarn_rotary_scaling_factor") != nullptr)
    return;
  for (auto const& [name, newer, usual] : yarn_args()) {
    Json const* const stated = args.find(newer);
    Json value = stated == nullptr || stated->is_null() ? usual : *stated;
    args.set(std::string(name), std::move(value));
  }
}

void name_as_older(Json& args) {
  for (auto const& [name, newer] : newer_names)
    if (Json const* const value = args.find(newer)) args.set(std::string(name), Json(*value));
  name_yarn_as_older(args);
}

}  // namespace

Json args_as_json(Document const& document, NodeId args) {
  if (args == no_node) return {};
  FactReader reader(document);
  Json::Object facts;
  for (auto const& [key, node] : document.members(args))
    if (auto fact = reader.value(node, 0)) facts.emplace_back(key, std::move(*fact));
  Json result(std::move(facts));
  name_as_older(result);
  return result;
}

ArgValues newer_args(ArgValues const& values) {
  std::map<std::string_view, std::string_view> names;
  for (auto const& [name, newer] : newer_names) names.emplace(name, newer);
  for (YarnArg const& arg : yarn_args())
    if (arg.name != arg.newer) names.emplace(arg.name, arg.newer);
  ArgValues result;
  for (auto const& [key, value] : values)
    if (auto const found = names.find(key); found != names.end())
      result.emplace_back(found->second, value);
  return result;
}

void set_args(Document& document, NodeId args, ArgValues const& values) {
  for (auto const& [key, value] : values) document.set(args, key, add_value(document, key, value));
}

NodeId add_namespace(Document& document, ArgValues const& values) {
  NodeId const state = document.add_dict();
  set_args(document, state, values);
  return document.add_object("argparse", "Namespace", state);
}

}  // namespace reshard::megatron
