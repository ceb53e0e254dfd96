#include "pipeline/describe/check_map.hpp"

#include <algorithm>

#include "core/base/files/file.hpp"
#include "core/base/tables/counted.hpp"
#include "core/formats/huggingface/config/config.hpp"
#include "stages/plan/check/map_check.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t largest_facts_bytes = 64U << 20;
constexpr std::size_t label_width = 13;
constexpr std::size_t line_width = 132;
constexpr std::size_t most_runs = 3;

Json shape_json(std::vector<Index> const& shape) {
  Json::Array extents;
  for (Index const extent : shape) extents.emplace_back(extent);
  return Json(std::move(extents));
}

Json texts_json(std::vector<std::string> const& texts) {
  Json::Array items;
  for (std::string const& text : texts) items.emplace_back(text);
  return Json(std::move(items));
}

/// "layer 3:61 of 61 · expert 256 · moe_inter 2048 · hidden 7168"
std::string domain_text(CheckedTensor const& tensor) {
  std::string text;
  for (std::size_t i = 0; i < tensor.axes.size(); ++i) {
    auto const& [name, size] = tensor.axes[i];
    auto const& runs = tensor.domain[i].runs;
    text += fmt::format("{}{} ", text.empty() ? "" : " · ", name);
    if (runs.size() == 1 && runs.front().begin == 0 && runs.front().end == size) {
      text += fmt::format("{}", size);
      continue;
    }
    for (std::size_t r = 0; r < std::min(runs.size(), most_runs); ++r) {
      text += r == 0 ? "" : ",";
      text += runs[r].end - runs[r].begin == 1 ? fmt::format("{}", runs[r].begin)
                                               : fmt::format("{}:{}", runs[r].begin, runs[r].end);
    }
    text += fmt::format("{} of {}", runs.size() > most_runs ? ",…" : "", size);
  }
  return text.empty() ? "one number" : text;
}

/// Items behind a label, as many on a line as fit.
std::string wrapped(std::string_view label, std::vector<std::string> const& items) {
  std::string text;
  std::string line;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!line.empty() && line.size() + items[i].size() + 3 + label_width > line_width) {
      text += fmt::format("{:<{}}{}\n", label, label_width, line);
      label = "";
      line.clear();
    }
    line += (line.empty() ? "" : ", ") + items[i];
  }
  return line.empty() ? text : text + fmt::format("{:<{}}{}\n", label, label_width, line);
}

std::vector<std::string> settings(std::vector<std::pair<std::string, Json>> const& values) {
  std::vector<std::string> items;
  for (auto const& [key, value] : values) items.push_back(key + " = " + value.dump());
  return items;
}

Json settings_json(std::vector<std::pair<std::string, Json>> const& values) {
  return Json(Json::Object(values));
}

class Writer {
 public:
  Writer(MapCheck const& check, std::string facts) : check_(check), facts_(std::move(facts)) {}

  std::string text() const {
    std::string text = fmt::format("{:<{}}{}: {}, {} entries, {}\n", "map", label_width, check_.map,
                                   counted(check_.words.names, "stored name"), check_.words.entries,
                                   counted(check_.words.tensors.size(), "logical tensor"));
    if (!check_.on_model)
      return text + lists() +
             wrapped("checked",
                     {"TOML, keys, inheritance, expressions, layouts, names, tensors, axes, sets; "
                      "--config checks it on a model"});
    text += fmt::format("{:<{}}{}\n\n", "model", label_width, facts_);
    for (CheckedTensor const& tensor : check_.tensors) text += tensor_text(tensor);
    text += "\n";
    for (FormCheck const& form : check_.forms) text += form_text(form);
    text += lists();
    text +=
        wrapped("args", settings(check_.args)) + wrapped("config.json", settings(check_.config));
    text += wrapped("not stated", check_.absent) + wrapped("no axis", check_.no_axes) +
            wrapped("not used", check_.unused);
    if (!check_.no_megatron.empty())
      text += fmt::format("{:<{}}{}\n", "no Megatron", label_width, check_.no_megatron);
    for (std::string const& note : check_.notes)
      text += fmt::format("{:<{}}{}\n", "note", label_width, note);
    text += fmt::format("{:<{}}{}, {}; stored tensors: {}\n", "total", label_width,
                        counted(check_.tensors.size(), "logical tensor"),
                        counted(parameters(), "parameter"), totals());
    for (std::string const& error : check_.errors)
      text += fmt::format("{:<{}}{}\n", "mistake", label_width, error);
    return text;
  }

  Json json() const {
    Json json;
    json.set("map", check_.map)
        .set("model", facts_.empty() ? Json() : Json(facts_))
        .set("proved", check_.on_model && check_.errors.empty());
    json.set("stored_names", static_cast<std::int64_t>(check_.words.names))
        .set("entries", static_cast<std::int64_t>(check_.words.entries));
    json.set("drop", texts_json(check_.drop)).set("keep", texts_json(check_.keep));
    if (!check_.on_model) return json.set("tensors", texts_json(check_.words.tensors));
    json.set("parameters", parameters());
    Json::Array tensors;
    for (CheckedTensor const& tensor : check_.tensors) tensors.push_back(tensor_json(tensor));
    json.set("tensors", Json(std::move(tensors)));
    Json::Array family;
    for (NamePattern const& pattern : check_.family) family.push_back(pattern_json(pattern));
    Json::Array megatron;
    for (CorePattern const& pattern : check_.megatron)
      megatron.push_back(pattern_json(pattern.names).set("cuts", texts_json(pattern.cuts)));
    Json::Array torch_dist;
    for (NamePattern const& pattern : check_.torch_dist)
      torch_dist.push_back(pattern_json(pattern));
    json.set("huggingface", Json(std::move(family)))
        .set("megatron", Json(std::move(megatron)))
        .set("torch_dist", Json(std::move(torch_dist)));
    Json::Array forms;
    for (FormCheck const& form : check_.forms)
      forms.push_back(Json()
                          .set("form", form.form)
                          .set("stored", static_cast<std::int64_t>(form.stored))
                          .set("proved", form.refused.empty())
                          .set("required", form.required)
                          .set("refused", form.refused.empty() ? Json() : Json(form.refused)));
    json.set("forms", Json(std::move(forms)))
        .set("args", settings_json(check_.args))
        .set("config", settings_json(check_.config));
    json.set("no_megatron", check_.no_megatron.empty() ? Json() : Json(check_.no_megatron));
    json.set("not_stated", texts_json(check_.absent))
        .set("no_axes", texts_json(check_.no_axes))
        .set("not_used", texts_json(check_.unused));
    return json.set("notes", texts_json(check_.notes)).set("errors", texts_json(check_.errors));
  }

 private:
  Index parameters() const {
    Index sum = 0;
    for (CheckedTensor const& tensor : check_.tensors)
      sum = checked_add(sum, tensor.elements, ErrorKind::usage, "the parameters of the model");
    return sum;
  }

  /// Totals of the first form of each side.
  std::string totals() const {
    std::string text;
    for (std::string_view const side : {"Hugging Face", "mp_rank", "torch_dist"}) {
      auto const form =
          std::find_if(check_.forms.begin(), check_.forms.end(),
                       [&](FormCheck const& item) { return item.form.starts_with(side); });
      if (form != check_.forms.end())
        text += fmt::format("{}{} {}", text.empty() ? "" : ", ", form->stored, side);
    }
    return text;
  }

  std::string tensor_text(CheckedTensor const& tensor) const {
    std::string text = fmt::format("{:<20}  {}\n", tensor.name, domain_text(tensor));
    for (std::size_t const i : tensor.family) text += pattern_text("  hf ", check_.family[i], {});
    for (std::size_t const i : tensor.core)
      text += pattern_text("  mg ", check_.megatron[i].names, check_.megatron[i].cuts);
    if (tensor.core.empty() && !check_.megatron.empty()) text += "  mg  no place\n";
    return text;
  }

  std::string pattern_text(std::string_view side, NamePattern const& pattern,
                           std::vector<std::string> const& cuts) const {
    std::string text = fmt::format("{} {:<{}}  {:<22} ×{:<6} {:<22}", side, pattern.text,
                                   name_width(), shape_json(pattern.shape).dump(), pattern.count,
                                   pattern.place + (pattern.copy ? " (copy)" : ""));
    for (std::string const& cut : cuts) text += (&cut == cuts.data() ? "  " : " · ") + cut;
    text.erase(text.find_last_not_of(' ') + 1);
    return text + "\n";
  }

  std::size_t name_width() const {
    std::size_t width = 0;
    for (NamePattern const& pattern : check_.family) width = std::max(width, pattern.text.size());
    for (CorePattern const& pattern : check_.megatron)
      width = std::max(width, pattern.names.text.size());
    return std::min<std::size_t>(width, 72);
  }

  static std::string form_text(FormCheck const& form) {
    if (form.refused.empty())
      return fmt::format("{:<{}}{:<52}{:>9} stored tensors\n", "proved", label_width, form.form,
                         form.stored);
    return fmt::format("{:<{}}{}: {}\n", form.required ? "NOT PROVED" : "not possible", label_width,
                       form.form, form.refused);
  }

  std::string lists() const {
    return wrapped("dropped", check_.drop) + wrapped("kept", check_.keep);
  }

  Json tensor_json(CheckedTensor const& tensor) const {
    Json::Array axes;
    for (std::size_t i = 0; i < tensor.axes.size(); ++i) {
      Json::Array runs;
      for (Run const& run : tensor.domain[i].runs)
        runs.push_back(Json().push(run.begin).push(run.end));
      axes.push_back(Json()
                         .set("axis", tensor.axes[i].first)
                         .set("size", tensor.axes[i].second)
                         .set("runs", Json(std::move(runs))));
    }
    Json::Array family;
    for (std::size_t const i : tensor.family) family.emplace_back(check_.family[i].text);
    Json::Array megatron;
    for (std::size_t const i : tensor.core) megatron.emplace_back(check_.megatron[i].names.text);
    Json json;
    json.set("name", tensor.name)
        .set("axes", Json(std::move(axes)))
        .set("elements", tensor.elements);
    return json.set("huggingface", Json(std::move(family)))
        .set("megatron", Json(std::move(megatron)));
  }

  static Json pattern_json(NamePattern const& pattern) {
    Json json;
    json.set("name", pattern.text)
        .set("shape", shape_json(pattern.shape))
        .set("count", static_cast<std::int64_t>(pattern.count));
    return json.set("copy", pattern.copy).set("entry", pattern.place);
  }

  MapCheck const& check_;
  std::string facts_;
};

}  // namespace

Json read_facts(fs::path path, std::uint64_t largest_bytes) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) path /= "config.json";
  try {
    return huggingface::parse_config(read_text_file(path, largest_bytes), path.string());
  } catch (Error const& error) {
    throw Error(ErrorKind::usage, error.sentence());
  }
}

MapReport check_map_report(std::string const& map, std::string const& config_path,
                           std::string const& args_path, MapLibrary const& library) {
  MapCheckRequest request{map, library, {}, {}};
  if (!config_path.empty()) request.config = read_facts(config_path, largest_facts_bytes);
  if (!args_path.empty()) request.args = read_facts(args_path, largest_facts_bytes);
  MapCheck check;
  try {
    check = check_map(request);
  } catch (Error const& error) {
    if (error.kind() == ErrorKind::internal) throw;
    throw Error(ErrorKind::usage, error.sentence());
  }
  Writer const writer(check, config_path.empty() ? args_path : config_path);
  return {writer.json(), writer.text(), check.errors.empty() ? "" : check.errors.front()};
}

}  // namespace reshard
