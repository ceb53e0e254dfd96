#include "core/formats/wrapped/wrapped_config.hpp"

#include <algorithm>
#include <set>

#include "core/base/files/file.hpp"
#include "core/base/files/sight.hpp"
#include "core/formats/huggingface/config/config.hpp"
#include "core/formats/huggingface/config/lora_config.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using Kind = WrappedName::Kind;

/// verl's file beside the files of ranks: {"r": 8, "lora_alpha": 16, "task_type": …}.
constexpr char const* verl_name = "lora_train_meta.json";

class ConfigFinder {
 public:
  ConfigFinder(Checkpoint const& source, WrappedNames const& names, WrappedChoice const& choice)
      : source_(source), names_(names), choice_(choice) {}

  WrappedConfig run() {
    find_config();
    return std::move(result_);
  }

 private:
  void read_config(fs::path const& path) {
    result_.text = read_text_file(path, huggingface::largest_config_bytes);
    result_.json = huggingface::parse_config(result_.text, path.string());
    result_.folder = path.parent_path();
  }

  void find_config() {
    if (!choice_.config.empty()) {
      fs::path const path = sees_folder(choice_.config)
                                ? choice_.config / huggingface::adapter_config_name
                                : choice_.config;
      bool const weights = sees_file(path.parent_path() / huggingface::adapter_file_name);
      if (path != choice_.config && weights)
        fail(ErrorKind::usage,
             "[source] adapter = \"{}\": {} holds an adapter of its own. To take that one, name {} "
             "itself, which states its scale; to merge the other one, merge it into the target of "
             "a job with model.adapter = \"drop\".",
             choice_.config.string(), source_.place, huggingface::adapter_config_name);
      if (!sees_file(path))
        fail(ErrorKind::usage, "[source] adapter: {} is no file. Name an {}.", path.string(),
             huggingface::adapter_config_name);
      return read_config(path);
    }
    fs::path const up = source_.folder.parent_path();
    for (fs::path const& folder :
         {source_.folder, source_.folder / "lora_adapter",
          source_.folder / huggingface::carried_name, up, up / "lora_adapter"})
      if (fs::path const path = folder / huggingface::adapter_config_name; sees_file(path))
        return read_config(path);
    if (sees_file(source_.folder / verl_name)) read_config(source_.folder / verl_name);
    if (result_.json.is_null() && choice_.use == AdapterUse::drop) return;
    if (result_.json.is_null()) result_.json = Json::object();
    Json const* const type = result_.json.find("peft_type");
    if (type == nullptr || type->is_null()) make_config();
  }

  /// Of what verl or the job states, and of the tensors.
  void make_config() {
    Json const* const alpha = result_.json.find("lora_alpha");
    Json const stated = alpha != nullptr && !alpha->is_null()
                            ? *alpha
                            : huggingface::stated_alpha(
                                  choice_.lora_alpha, Json(),
                                  fmt::format("{}: nothing beside it states the scale of its "
                                              "adapter. Name its {} with source.adapter, or state "
                                              "alpha here (a scale of alpha / rank).",
                                              source_.place, huggingface::adapter_config_name));
    std::map<std::string, Index> ranks;
    std::map<Index, std::size_t> counts;
    std::set<std::string> saved;
    bool dora = false;
    for (auto const& [at, name] : names_) {
      dora = dora || name.kind == Kind::magnitude;
      if (name.kind == Kind::trained) saved.insert(name.wrapped);
      SharedShape const shape = source_.stored.tensors.shape(at);
      if (name.kind != Kind::matrix || name.peft.find(".lora_A.") == std::string::npos ||
          shape.empty())
        continue;
      ranks[name.wrapped] = shape.front();
      ++counts[shape.front()];
    }
    auto const most =
        std::ranges::max_element(counts, {}, [](auto const& one) { return one.second; });
    Index const rank = most == counts.end() ? 0 : most->first;
    Json modules = Json::array();
    Json others = Json::object();
    for (auto const& [module, own] : ranks) {
      modules.push(module);
      if (own != rank) others.set(module, own);
    }
    Json trained = Json::array();
    for (std::string const& module : saved) trained.push(module);
    Json const* const r = result_.json.find("r");
    Json const* const task = result_.json.find("task_type");
    Json made = Json::object();
    made.set("peft_type", "LORA")
        .set("task_type", task != nullptr ? *task : Json("CAUSAL_LM"))
        .set("base_model_name_or_path", Json())
        .set("r", r != nullptr ? *r : Json(rank))
        .set("lora_alpha", stated)
        .set("target_modules", modules)
        .set("rank_pattern", others)
        .set("bias", "none")
        .set("use_dora", dora);
    if (!saved.empty()) made.set("modules_to_save", trained);
    result_.json = made;
    result_.text = made.dump(2) + "\n";
    if (result_.folder.empty()) result_.folder = source_.folder;
  }

  Checkpoint const& source_;
  WrappedNames const& names_;
  WrappedChoice const& choice_;
  WrappedConfig result_;
};

}  // namespace

WrappedConfig wrapped_config(Checkpoint const& source, WrappedNames const& names,
                             WrappedChoice const& choice) {
  return ConfigFinder(source, names, choice).run();
}

}  // namespace reshard
