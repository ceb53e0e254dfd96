#include "core/formats/huggingface/config/quant_config.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <sstream>

#include "core/base/files/file.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/huggingface/config/config.hpp"
#include "core/formats/targets/target_parts.hpp"
#include "core/mapping/maps/config_defaults.hpp"

namespace reshard {
namespace {

constexpr std::string_view modelopt_file = "hf_quant_config.json";
constexpr char const* config_member = "quantization_config";
constexpr std::uint64_t largest_config_bytes = 256U << 20;

/// A quantised module: what ModelOpt calls a layer.
struct Module {
  QuantScheme const* scheme = nullptr;
  bool input_scale = false;
  bool smoothed = false;
};

std::string without_ending(std::string const& name, std::string const& ending) {
  if (name.ends_with("." + ending)) return name.substr(0, name.size() - ending.size() - 1);
  auto const tail = ending.starts_with("weight_") ? ending.substr(6) : "_" + ending;
  return name.ends_with(tail) ? name.substr(0, name.size() - tail.size()) : name;
}

/// Columns that share a scale, where the label names groups; 0 where it does not.
Index group_size_of(QuantScheme const& scheme) {
  if (scheme.label.group_size == 0) return 0;
  for (QuantPart const& part : scheme.parts)
    if (part.name == "scale" && part.dims.size() == 2 &&
        part.dims[1].kind == PartDim::Kind::blocks && part.dims[1].block > 1)
      return part.dims[1].block;
  return scheme.label.group_size;
}

Json number_format(QuantScheme const& scheme) {
  QuantLabel const& label = scheme.label;
  Json result;
  result.set("dynamic", false).set("num_bits", label.bits).set("type", label.type);
  if (Index const size = group_size_of(scheme); size > 0) result.set("group_size", size);
  if (!label.strategy.empty()) result.set("strategy", label.strategy);
  return result;
}

/// A description's words about modules, in hf_quant_config.json's "quantization" or config.json.
struct Statement {
  Json const* algorithm = nullptr;
  Json const* group_size = nullptr;
  Json const* layers = nullptr;  ///< quantized_layers
  std::vector<std::string> excluded;
  bool listed = false;  ///< there is a list of these
};

Statement statement_in(Json const& described) {
  Statement result{described.find("quant_algo"),
                   described.find("group_size"),
                   described.find("quantized_layers"),
                   {},
                   false};
  for (char const* key : {"exclude_modules", "ignore"})
    if (Json const* list = described.find(key); list != nullptr && list->items() != nullptr) {
      result.listed = true;
      for (Json const& item : *list->items())
        if (item.text() != nullptr) result.excluded.push_back(*item.text());
    }
  return result;
}

bool means(std::string const& pattern, std::string const& module) {
  return pattern == module || matches_glob(pattern, module);
}

/// Whether a list leaves a module as it is, by its name or that of one around it.
bool excludes(std::vector<std::string> const& patterns, std::string const& module) {
  return std::ranges::any_of(patterns, [&](std::string const& pattern) {
    return means(pattern, module) || module.starts_with(pattern + ".");
  });
}

/// The same for all layers and experts.
std::string kind_of(std::string module) {
  std::erase_if(module, [](char c) { return c >= '0' && c <= '9'; });
  return module;
}

class QuantDescriber {
 public:
  QuantDescriber(TargetDraft& job, Model const& model, Side const& side, Json const& known,
                 std::string inner, bool of_source)
      : job_(job),
        model_(model),
        side_(side),
        known_(known),
        inner_(std::move(inner)),
        of_source_(of_source) {}

  void run(std::span<StoredName const> names) {
    sort(names);
    TextFile const* config = config_text(job_);
    if (config == nullptr) return;
    Json const stated = huggingface::parse_config(config->text, huggingface::config_name);
    Json said = fact(stated, config_member);
    if (said.is_null() && !inner_.empty()) {
      said = fact(stated, inner_ + "." + config_member);
      std::istringstream members(said.is_null() ? "" : inner_);
      for (std::string member; std::getline(members, member, '.');)
        path_.insert(path_.end() - 1, member);
    }
    bool const has = !said.is_null();
    if (modules_.empty()) return forget(has);
    Json const existing = has ? said : known_;
    Json const* method = existing.find("quant_method");
    bool const by_modelopt =
        method == nullptr || (method->text() != nullptr && *method->text() == "modelopt");
    if (by_modelopt && is_modelopt()) {
      Json const before = sidecar();
      Json const* details = before.find("quantization");
      if (hold({statement_in(said), details == nullptr ? Statement{} : statement_in(*details)}))
        return;
      return describe_modelopt(existing, before);
    }
    if (has) return;
    patch(existing.is_null() ? made_config() : existing);
  }

 private:
  void sort(std::span<StoredName const> names) {
    std::optional<TensorId> const embed = model_.find_tensor("embed");
    for (StoredName const& name : names) {
      std::string const& part = side_.part(name.entry);
      auto const& tensors = side_.tensors(name.entry);
      if (part.empty()) {
        std::size_t const dims = side_.quantised_expression(name.entry).dims.size();
        if (dims == 2 && name.name.ends_with(".weight") && tensors.front() != embed)
          plain_.push_back(without_ending(name.name, "weight"));
        // Experts of a layer in one tensor are a module that holds parameters, not layers.
        if (dims == 3 && !name.name.ends_with(".weight"))
          note_fused(name.name.substr(0, name.name.rfind('.')));
        continue;
      }
      std::string const scheme = part.substr(0, part.find('.'));
      std::string const kind = part.substr(part.find('.') + 1);
      for (QuantScheme const& known : model_.schemes()) {
        if (known.name != scheme || known.beside) continue;
        for (QuantPart const& known_part : known.parts) {
          if (known_part.name != kind) continue;
          Module& module = modules_[without_ending(name.name, known_part.stored)];
          module.scheme = &known;
          module.input_scale =
              module.input_scale || kind == "input_scale" || kind == "input_global_scale";
          module.smoothed = module.smoothed || kind == "pre_quant_scale";
        }
      }
    }
  }

  void note_fused(std::string module) {
    if (plain_.empty() || plain_.back() != module) plain_.push_back(std::move(module));
  }

  bool is_modelopt() const {
    return std::all_of(modules_.begin(), modules_.end(), [](auto const& item) {
      return item.second.scheme->label.method == "modelopt";
    });
  }

  void patch(std::optional<Json> value) { patch_config(job_, {path_, std::move(value)}); }

  void forget(bool has) {
    if (has) patch(std::nullopt);
    remove_sidecar();
  }

  /// hf_quant_config.json, where it would be copied.
  Json sidecar() const {
    if (!job_.reference) return {};
    auto const& sidecars = job_.reference->sidecars;
    if (std::find(sidecars.begin(), sidecars.end(), modelopt_file) == sidecars.end()) return {};
    auto const path = job_.reference->path / modelopt_file;
    return parse_json(read_text_file(path, largest_config_bytes), path.string());
  }
  void remove_sidecar() {
    if (job_.reference) std::erase(job_.reference->sidecars, std::string(modelopt_file));
  }

  /// Whether one of two describes the modules, and none is wrong about them. One of them may leave
  /// the list to the other.
  bool hold(std::array<Statement, 2> all) const {
    for (std::size_t i : {0U, 1U})
      if (!all[i].listed) all[i].excluded = all[1 - i].excluded;
    bool const listed = all[0].listed || all[1].listed;
    auto const tells = [](Statement const& said) {
      return said.algorithm != nullptr && said.algorithm->text() != nullptr;
    };
    return std::ranges::any_of(all, tells) && std::ranges::all_of(all, [&](Statement const& said) {
             return !tells(said) || holds(said, listed);
           });
  }

  /// Pre: it names the algorithm. `listed`: what is left as it is has a list.
  bool holds(Statement const& said, bool listed) const {
    bool const mixed = *said.algorithm->text() == "MIXED_PRECISION";
    if (mixed && (said.layers == nullptr || said.layers->members() == nullptr)) return false;
    std::set<std::string> kinds;
    for (auto const& [name, module] : modules_) {
      bool const right = mixed ? has_layer(*said.layers, name, module)
                               : is_of(*said.algorithm, said.group_size, module);
      if (!right || std::ranges::any_of(said.excluded, [&, &of = name](std::string const& pattern) {
            return means(pattern, of);
          }))
        return false;
      kinds.insert(kind_of(name));
    }
    return std::ranges::all_of(plain_, [&](std::string const& name) {
      if (mixed) return said.layers->find(name) == nullptr;
      // The source's own description is right about a layer that no quantiser looks at, such as a
      // router.
      return excludes(said.excluded, name) ||
             (of_source_ && listed && !kinds.contains(kind_of(name)) &&
              !has_another_name(said, name));
    });
  }

  /// Whether a list names a module that this folder calls otherwise ("….block_sparse_moe.gate").
  bool has_another_name(Statement const& said, std::string const& name) const {
    std::string const last = name.substr(name.rfind('.') + 1);
    return std::ranges::any_of(said.excluded, [&](std::string const& listed) {
      return listed.ends_with("." + last) && listed.find('*') == std::string::npos &&
             !modules_.contains(listed) && std::ranges::find(plain_, listed) == plain_.end();
    });
  }

  static bool is_of(Json const& algorithm, Json const* group_size, Module const& module) {
    QuantLabel const& label = module.scheme->label;
    Index const size = group_size_of(*module.scheme);
    if (group_size != nullptr && group_size->integer() != nullptr && size > 0 &&
        *group_size->integer() != size)
      return false;
    std::string const* text = algorithm.text();
    return text != nullptr && !text->empty() &&
           (*text == label.algorithm || *text == label.smoothed || *text == label.weights_alone ||
            std::ranges::find(label.others, *text) != label.others.end());
  }

  /// An entry of its own, or of a module around it.
  static bool has_layer(Json const& layers, std::string name, Module const& module) {
    for (;;) {
      if (Json const* layer = layers.find(name); layer != nullptr) {
        Json const* algorithm = layer->find("quant_algo");
        return algorithm != nullptr && is_of(*algorithm, layer->find("group_size"), module);
      }
      std::size_t const dot = name.rfind('.');
      if (dot == std::string::npos) return false;
      name.resize(dot);
    }
  }

  /// The patterns of a list that are still true, and those that it lacks.
  Json excluded(std::vector<std::string> list) const {
    std::erase_if(list, [this](std::string const& pattern) {
      return std::ranges::any_of(modules_,
                                 [&](auto const& item) { return means(pattern, item.first); });
    });
    std::vector<std::string> const kept = list;
    std::ranges::copy_if(plain_, std::back_inserter(list),
                         [&](std::string const& name) { return !excludes(kept, name); });
    return Json(Json::Array(list.begin(), list.end()));
  }

  static std::string algorithm(Module const& module) {
    QuantLabel const& label = module.scheme->label;
    if (module.smoothed && !label.smoothed.empty()) return label.smoothed;
    return !module.input_scale && !label.weights_alone.empty() ? label.weights_alone
                                                               : label.algorithm;
  }

  static Json layer(Module const& module) {
    Json result;
    result.set("quant_algo", algorithm(module));
    if (Index const size = group_size_of(*module.scheme); size > 0) result.set("group_size", size);
    return result;
  }

  static Json group(Module const& module, Json::Array targets) {
    Json result;
    if (module.input_scale) result.set("input_activations", number_format(*module.scheme));
    result.set("weights", number_format(*module.scheme)).set("targets", Json(std::move(targets)));
    return result;
  }

  /// Both files, with what they said of other things.
  void describe_modelopt(Json const& existing, Json const& before) {
    remove_sidecar();
    std::map<std::string, std::vector<std::string>>
        formats;  // the text of a layer's format -> modules
    for (auto const& [name, module] : modules_)
      formats[layer(module).dump() + (module.input_scale ? "i" : "")].push_back(name);
    bool const mixed = formats.size() > 1;

    Json::Object each;
    for (auto const& [name, module] : modules_) each.emplace_back(name, layer(module));
    Json const layers(std::move(each));
    Json const whole =
        mixed ? Json().set("quant_algo", "MIXED_PRECISION") : layer(modules_.begin()->second);
    Json const* details = before.find("quantization");
    std::vector<std::string> const of_config = statement_in(existing).excluded;
    std::vector<std::string> const of_file =
        details != nullptr ? statement_in(*details).excluded : of_config;

    Json quantization = whole;
    quantization.set("kv_cache_quant_algo", Json());
    if (details != nullptr && details->members() != nullptr)
      for (auto const& [key, value] : *details->members())
        if (key != "quant_algo" && key != "group_size" && key != "quantized_layers")
          quantization.set(key, value);
    quantization.set("exclude_modules", excluded(of_file));
    if (mixed) quantization.set("quantized_layers", layers);
    Json const* producer =
        before.find("producer") != nullptr ? before.find("producer") : existing.find("producer");
    Json file = before.is_null() ? Json::object() : before;
    file.set("producer", producer == nullptr ? Json().set("name", "modelopt") : *producer)
        .set("quantization", quantization);

    Json groups = Json::object();
    for (auto const& [text, names] : formats) {
      Module const& module = modules_.at(names.front());
      Json::Array targets{Json("Linear")};
      if (mixed) targets.assign(names.begin(), names.end());
      groups.set(fmt::format("group_{}", groups.members()->size()),
                 group(module, std::move(targets)));
    }
    Json described;
    described.set("config_groups", groups);
    if (mixed) described.set("quantized_layers", layers);
    described.set("ignore", excluded(existing.is_null() ? of_file : of_config))
        .set("quant_algo", *quantization.find("quant_algo"));
    if (existing.members() != nullptr)
      for (auto const& [key, value] : *existing.members())
        if (key != "quantized_layers" && key != "exclude_modules" && key != "group_size" &&
            described.find(key) == nullptr)
          described.set(key, value);
    described.set("producer", *file.find("producer")).set("quant_method", "modelopt");
    patch(std::move(described));
    job_.texts.push_back({std::string(modelopt_file), file.dump(4) + "\n", false, {}});
  }

  /// For schemes whose config says no more than which modules are left as they are.
  Json made_config() const {
    std::set<std::string> methods;
    for (auto const& [name, module] : modules_) methods.insert(module.scheme->label.method);
    if (methods.size() != 1 || (*methods.begin() != "fp8" && *methods.begin() != "mxfp4"))
      fail(ErrorKind::usage,
           "[target] reference: the weights are quantised ({}), and how config.json describes that "
           "is not known. Name a folder whose config.json has the quantization_config of this "
           "model, or set model.quant = \"dequantise-bf16\".",
           listed(std::vector<std::string>(methods.begin(), methods.end())));
    Json result;
    result.set("quant_method", *methods.begin());
    if (*methods.begin() == "fp8") {
      result.set("fmt", "e4m3").set("activation_scheme", "dynamic");
      for (auto const& [name, module] : modules_)
        for (QuantPart const& part : module.scheme->parts)
          if (part.name == "scale" && part.dims.size() == 2 && part.dims[0].block > 1)
            result.set("weight_block_size",
                       Json(Json::Array{Json(part.dims[0].block), Json(part.dims[1].block)}));
    }
    result.set("modules_to_not_convert", Json(Json::Array(plain_.begin(), plain_.end())));
    return result;
  }

  TargetDraft& job_;
  Model const& model_;
  Side const& side_;
  Json const& known_;
  std::string inner_;
  bool of_source_;
  std::vector<std::string> path_{config_member};  ///< of quantization_config in config.json
  std::map<std::string, Module> modules_;
  std::vector<std::string> plain_;
};

}  // namespace

void describe_quantised(TargetDraft& job, Model const& model, Side const& side,
                        std::span<StoredName const> names, Json const& known,
                        std::string const& inner, bool of_source) {
  QuantDescriber(job, model, side, known, inner, of_source).run(names);
}

}  // namespace reshard
