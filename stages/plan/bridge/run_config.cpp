#include "stages/plan/bridge/run_config.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/base/capture.hpp"
#include "core/base/text/text.hpp"
#include "core/base/text/yaml.hpp"
#include "core/base/text/yaml_text.hpp"
#include "core/mapping/maps/config_defaults.hpp"
#include "core/mapping/model.hpp"
#include "stages/plan/source/facts/stated_args.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr char const* table_name = "megatron_bridge_target";
constexpr std::string_view none = "None";

using Members = std::vector<std::pair<std::string, Json>>;

/// Members of the section `model` for the target; null: none.
Members members_of_layout(Json const& args, Json const& model, bool layers_apart) {
  Members result;
  for (char const* name : {"tensor_model_parallel_size", "pipeline_model_parallel_size",
                           "virtual_pipeline_model_parallel_size", "expert_model_parallel_size",
                           "expert_tensor_parallel_size", "pipeline_model_parallel_layout"})
    result.emplace_back(name, fact(args, name));
  result.emplace_back("num_layers_in_first_pipeline_stage",
                      fact(args, "decoder_first_pipeline_num_layers"));
  result.emplace_back("num_layers_in_last_pipeline_stage",
                      fact(args, "decoder_last_pipeline_num_layers"));
  // A hybrid model has them without a word.
  bool const hybrid = !fact(model, "hybrid_layer_pattern").is_null();
  bool const said = fact(model, "hetereogenous_dist_checkpoint") == Json(true);
  if (said != layers_apart && !hybrid)
    result.emplace_back("hetereogenous_dist_checkpoint", layers_apart);
  Json const rows = fact(args, "padded_vocab_size");
  Json const vocabulary = fact(model, "vocab_size");
  if (rows.integer() != nullptr && vocabulary.integer() != nullptr && rows != vocabulary)
    result.emplace_back("should_pad_vocab", true);
  return result;
}

/// The members set in lines of their own in the section `model`, in block style.
std::string with_lines(std::string_view text, Members members) {
  std::string result;
  bool inside = false;
  auto const add_missing = [&] {
    for (auto const& [member, value] : members)
      if (!value.is_null()) result += fmt::format("  {}: {}\n", member, value.dump());
    members.clear();
  };
  while (!text.empty()) {
    std::size_t const end = std::min(text.find('\n'), text.size() - 1) + 1;
    std::string line(text.substr(0, end));
    text.remove_prefix(end);
    bool const top = line.front() != ' ' && line.front() != '\n' && line.front() != '#';
    if (top && inside) add_missing();
    if (top) inside = line.starts_with("model:");
    for (auto member = members.begin(); inside && member != members.end();) {
      std::string const begin = fmt::format("  {}: ", member->first);
      bool const here = line.starts_with(begin);
      if (here) line = begin + member->second.dump() + "\n";
      member = here ? members.erase(member) : member + 1;
    }
    result += line;
  }
  if (inside) {
    if (!result.ends_with('\n')) result += '\n';
    add_missing();
  }
  return result;
}

/// The document with these members of its section `model`, or of `transformer` in it.
Json with_members(Json document, Members const& members) {
  for (auto& [section, model] : *document.members()) {
    if (section != "model") continue;
    for (auto const& [member, value] : members) {
      Json* place = &model;
      for (auto& [key, inner] : *model.members())
        if (key == "transformer" && inner.find(member) != nullptr) place = &inner;
      if (!value.is_null() || place->find(member) != nullptr) place->set(member, value);
    }
  }
  return document;
}

/// The member that names the dtype of a section, where it has it: as a word, or as a call.
void set_dtypes(Json& section, Json const& args) {
  Json const dtype = fact(args, "params_dtype");
  for (auto& [key, value] : *section.members()) {
    if (key == "bf16" || key == "fp16") value = fact(args, key);
    if (key != "params_dtype" && key != "pipeline_dtype" && key != "autocast_dtype") continue;
    if (value.text() != nullptr) value = dtype;
    if (value.members() != nullptr) value.set("_target_", dtype);
  }
}

/// The document computing in what args state.
Json with_dtypes(Json document, Json const& args) {
  bool const bf16 = fact(args, "bf16") == Json(true);
  bool const fp16 = fact(args, "fp16") == Json(true);
  for (auto& [key, section] : *document.members()) {
    if (key == "mixed_precision" && section.text() != nullptr)
      section = bf16 ? Json("bf16_mixed") : fp16 ? Json("fp16_mixed") : Json();
    if ((key != "model" && key != "mixed_precision" && key != "optimizer") ||
        section.members() == nullptr)
      continue;
    set_dtypes(section, args);
    for (auto& [name, inner] : *section.members())
      if (name == "transformer" && inner.members() != nullptr) set_dtypes(inner, args);
  }
  return document;
}

/// Sets a member of a member: "transformer_layer_spec._target_".
void set_in(Json& object, std::string_view path, Json value) {
  std::size_t const dot = path.find('.');
  if (dot == std::string_view::npos) {
    object.set(path, std::move(value));
    return;
  }
  std::string_view const key = path.substr(0, dot);
  if (object.find(key) == nullptr) object.set(key, Json::object());
  for (auto& [name, member] : *object.members())
    if (name == key) set_in(member, path.substr(dot + 1), std::move(value));
}

/// Where a member of the table belongs in the file.
std::string place_of(std::string const& name) {
  bool const apart = name.starts_with("checkpoint.") || name.starts_with("tokenizer.");
  return apart ? name : "model." + name;
}

[[noreturn]] void refuse(BridgeTarget const& target, std::string const& reason) {
  fail(ErrorKind::usage,
       "[target] program = \"megatron-bridge\": {}{}. Remove the key: without it Megatron-Bridge "
       "loads the weights into a model that it builds from the Hugging Face folder (AutoBridge).",
       reason, target.family.empty() ? "" : fmt::format(" ({}.toml)", target.family));
}

}  // namespace

std::string run_config_text(BridgeTarget const& target, MapLibrary const& library) {
  if (target.family.empty())
    for (std::string const& arg : target.own_args)
      if (Json const value = fact(target.args, arg); !value.is_null() && value != Json(false))
        refuse(target, fmt::format("args.{} = {} is of layers that Megatron-Core does not have",
                                   arg, value.dump()));
  Json facts = target.args;
  facts.set("family", target.family);
  facts.set("config", target.config);
  facts.set("target_folder", target.folder.string());
  facts.set("hf_folder", target.hf_folder ? Json(target.hf_folder->string()) : Json());
  facts.set("layers_apart", target.layers_apart);
  facts.set("has_optimizer", target.has_optimizer);
  facts.set("has_random_state", target.has_random_state);
  facts.set("has_parts", target.has_parts);
  MapFile const table = library.settings(table_name);
  Json result = Json::object();
  result.set("_target_", "megatron.bridge.training.config.ConfigContainer");
  Model const model(table, table, {facts, "args"});
  // A model that is refused may have no values for the others.
  auto const others = std::ranges::find_if_not(
      table.args, [](NamedExpression const& one) { return one.name == "refused"; });
  for (auto const& [name, reason] : model.evaluate({table.args.begin(), others}))
    if (!reason.is_null()) refuse(target, *reason.text());
  for (auto& [name, value] : model.evaluate({others, table.args.end()})) {
    if (value.is_null()) continue;
    set_in(result, place_of(name), value == Json(none) ? Json() : std::move(value));
  }
  return yaml_text(result);
}

std::string revised_run_config(std::string const& text, Json const& args, bool layers_apart,
                               bool dtypes) {
  Json const document = parse_yaml(text, run_config_name);
  Members const members = members_of_layout(args, fact(document, "model"), layers_apart);
  if (dtypes) return yaml_text(with_dtypes(with_members(document, members), args));
  Json const wanted = with_members(document, members);
  std::string edited = with_lines(text, members);
  Json read;
  auto const failed = capture([&] { read = parse_yaml(edited, run_config_name); });
  return !failed && read == wanted ? edited : yaml_text(wanted);
}

}  // namespace reshard
