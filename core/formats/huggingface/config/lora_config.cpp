#include "core/formats/huggingface/config/lora_config.hpp"

#include <charconv>
#include <cmath>
#include <limits>
#include <regex>

#include "core/base/error.hpp"
#include "core/base/text/text.hpp"

namespace reshard::huggingface {
namespace {

constexpr std::size_t longest_pattern = 200;
constexpr std::size_t longest_module = 500;
constexpr char const* merge_with_peft =
    "Merge it into its base model with peft (merge_and_unload, save_pretrained), and use the "
    "result.";
/// Kinds that put tokens before the input and change no weight.
constexpr std::array<std::string_view, 6> of_prompts = {"PREFIX_TUNING",           "PROMPT_TUNING",
                                                        "MULTITASK_PROMPT_TUNING", "P_TUNING",
                                                        "ADAPTION_PROMPT",         "CPT"};
constexpr char const* leave_beside =
    "It changes no weight, so nothing can be merged: convert the base model, and load this beside "
    "it.";

/// Members that make an adapter more than a product beside the weights when they are neither null
/// nor false nor empty, and what they mean.
struct Refused {
  std::string_view member;
  std::string_view meaning;
};
constexpr Refused refused[] = {
    {"use_dora", "its weights are normalised (DoRA)"},
    {"modules_to_save", "it holds modules that were trained completely"},
    {"trainable_token_indices", "it holds rows of the embedding"},
    {"layer_replication", "it repeats layers of the model"},
    {"lora_bias", "its products have biases"},
    {"megatron_config", "it was made for layers of Megatron"},
    {"alora_invocation_tokens", "it applies to a part of the tokens (aLoRA)"},
    {"use_qalora", "it was made for a quantised model (QALoRA)"},
    {"kasa_config", "its products have singular values between their factors (KaSA)"},
    {"monteclora_config", "it samples its factors (MonteCLoRA)"},
    {"velora_config", "this program does not know it (VeLoRA)"},
    {"use_bdlora", "its factors are block-diagonal"},
    {"arrow_config", "it routes between adapters (Arrow)"},
};

/// Whether a member says something.
bool says(Json const* member) {
  if (member == nullptr || member->is_null()) return false;
  if (member->boolean() != nullptr) return *member->boolean();
  if (member->items() != nullptr) return !member->items()->empty();
  if (member->members() != nullptr) return !member->members()->empty();
  return true;
}

std::optional<double> number(Json const* member) {
  if (member == nullptr) return std::nullopt;
  if (member->integer() != nullptr) return static_cast<double>(*member->integer());
  if (member->real() != nullptr) return *member->real();
  return std::nullopt;
}

std::string shown(Json const* member) {
  if (member == nullptr) return "missing";
  // How NaN and Infinity, which Python writes, are held.
  if (member->members() != nullptr)
    if (Json const* const special = member->find("__float__");
        special != nullptr && special->text() != nullptr)
      return *special->text();
  return member->dump();
}

/// Whether std::regex matches a pattern in a time that names of modules cannot make long: no group
/// is repeated, at most three things are, and nothing is looked for elsewhere.
bool is_simple(std::string_view pattern) {
  int repeats = 0;
  bool in_class = false;
  char before = '\0';
  for (std::size_t at = 0; at < pattern.size(); ++at) {
    char const letter = pattern[at];
    char const next = at + 1 < pattern.size() ? pattern[at + 1] : '\0';
    if (letter == '\\') {
      if (next >= '0' && next <= '9') return false;
      ++at;
      before = 'a';
      continue;
    }
    if (in_class) {
      in_class = letter != ']';
    } else if (letter == '[') {
      in_class = true;
    } else if (letter == '(' && next == '?') {
      if (at + 2 >= pattern.size() || pattern[at + 2] != ':') return false;
    } else if (letter == '*' || letter == '+' || letter == '{') {
      if (before == ')' || ++repeats > 3) return false;
    }
    before = letter;
  }
  return true;
}

/// Whether a key of a pattern means a module: a regular expression for its last words.
bool means(std::string const& key, std::string const& module, std::string const& place) {
  try {
    if (key.size() > longest_pattern || module.size() > longest_module || !is_simple(key))
      throw std::regex_error(std::regex_constants::error_complexity);
    std::regex const pattern(key);
    for (std::size_t at = 0;; at = module.find('.', at) + 1) {
      auto const flags =
          at == 0 ? std::regex_constants::match_default : std::regex_constants::match_not_bol;
      if (std::regex_match(module.substr(at), pattern, flags)) return true;
      if (module.find('.', at) == std::string::npos) return false;
    }
  } catch (std::regex_error const&) {
    fail(ErrorKind::source,
         "{}: '{}' is not a pattern that this program can read. Name the modules themselves.",
         place, key);
  }
}

}  // namespace

LoraConfig::LoraConfig(Json config, std::string place, LoraUse use)
    : config_(std::move(config)), place_(std::move(place)) {
  Json const* const type = config_.find("peft_type");
  std::string const* const kind = type == nullptr ? nullptr : type->text();
  if (kind == nullptr || *kind != "LORA") {
    bool const prompts = kind != nullptr && std::ranges::count(of_prompts, *kind) > 0;
    fail(ErrorKind::source,
         "{}: peft_type is {}, and only adapters of the type \"LORA\" can be read. {}", place_,
         shown(type), prompts ? leave_beside : merge_with_peft);
  }
  // In Megatron's formats there is no name for its magnitudes.
  normalised_ = use == LoraUse::merge && says(config_.find("use_dora"));
  for (Refused const& one : refused)
    if (says(config_.find(one.member)) && !(normalised_ && one.member == "use_dora"))
      fail(ErrorKind::source,
           "{}: {} = {}: {}. This job can have only adapters that add a product of two "
           "matrices to weights. {}",
           place_, one.member, shown(config_.find(one.member)), one.meaning, merge_with_peft);
  check_types();
  Json const* const bias = config_.find("bias");
  if (bias != nullptr && bias->text() != nullptr && *bias->text() != "none")
    fail(ErrorKind::source,
         "{}: bias = {}: biases of the model were trained too. This version reads only bias = "
         "\"none\". {}",
         place_, shown(bias), merge_with_peft);
  Json const* const start = config_.find("init_lora_weights");
  if (start != nullptr && start->text() != nullptr)
    for (std::string_view const word : {"pissa", "corda", "olora", "loftq", "lora_ga"})
      if (start->text()->starts_with(word)) judge_start(shown(start), use);
  transposed_ = says(config_.find("fan_in_fan_out"));
  by_root_ = says(config_.find("use_rslora"));
  if (Json const* const parameters = config_.find("target_parameters");
      parameters != nullptr && parameters->items() != nullptr)
    for (Json const& one : *parameters->items())
      if (one.text() != nullptr) parameters_.push_back(*one.text());
}

/// Members of a wrong type would be taken for others, and a variant that is newer than this program
/// for a plain adapter.
void LoraConfig::check_types() const {
  for (std::string_view const member : {"use_rslora", "fan_in_fan_out"})
    if (Json const* const value = config_.find(member);
        value != nullptr && !value->is_null() && value->boolean() == nullptr)
      fail(ErrorKind::source,
           "{}: {} is {}, expected true or false. Correct it, or copy the adapter again.", place_,
           member, shown(value));
  for (std::string_view const member : {"rank_pattern", "alpha_pattern"})
    if (Json const* const value = config_.find(member);
        value != nullptr && !value->is_null() && value->members() == nullptr)
      fail(ErrorKind::source,
           "{}: {} is {}, expected an object of module names and numbers. Correct it, or copy the "
           "adapter again.",
           place_, member, shown(value));
  for (auto const& [member, value] : *config_.members())
    if (member.starts_with("use_") && member != "use_rslora" && member != "use_dora" &&
        says(&value))
      fail(ErrorKind::source, "{}: {} = {}: this program does not know this variant of LoRA. {}",
           place_, member, shown(&value), merge_with_peft);
}

void LoraConfig::judge_start(std::string const& start, LoraUse use) {
  std::string const what = fmt::format(
      "{}: init_lora_weights = {}: this changes the weights of the base model, and the adapter "
      "belongs to the changed ones",
      place_, start);
  if (use == LoraUse::merge)
    fail(ErrorKind::source,
         "{}. Save it with peft's path_initial_model_for_weight_conversion, or merge it with peft.",
         what);
  warnings_.push_back(what +
                      ". The adapter is copied unchanged: do not use it with the published "
                      "base model");
}

std::optional<Json> LoraConfig::pattern(std::string_view table, std::string_view module) const {
  Json const* const patterns = config_.find(table);
  if (patterns == nullptr || patterns->members() == nullptr) return std::nullopt;
  for (auto const& [key, value] : *patterns->members())
    if (means(key, std::string(module), place_)) return value;
  return std::nullopt;
}

bool LoraConfig::same_alpha() const { return !says(config_.find("alpha_pattern")); }

bool LoraConfig::uniform() const { return same_alpha() && !says(config_.find("rank_pattern")); }

void LoraConfig::check(std::string_view module, Index rank) const {
  if (Index const stated = this->rank(module); stated != rank)
    fail(ErrorKind::source,
         "{}: states rank {} for '{}', and the tensors have rank {}. The two files belong to "
         "different adapters: copy both from one.",
         place_, stated, module, rank);
  scale(module, rank);
}

Index LoraConfig::rank(std::string_view module) const {
  std::optional<Json> const own = pattern("rank_pattern", module);
  Json const* const stated = own ? &*own : config_.find("r");
  if (stated == nullptr || stated->integer() == nullptr || *stated->integer() < 1)
    fail(ErrorKind::source,
         "{}: {} of '{}' is {}, expected a whole number above 0. Correct it, or copy the adapter "
         "again.",
         place_, own ? "the rank_pattern" : "r", module, shown(stated));
  return *stated->integer();
}

float LoraConfig::scale(std::string_view module, Index rank) const {
  std::optional<Json> const own = pattern("alpha_pattern", module);
  Json const* const stated = own ? &*own : config_.find("lora_alpha");
  std::string_view const member = own ? "the alpha_pattern" : "lora_alpha";
  std::optional<double> const alpha = number(stated);
  if (!alpha)
    fail(ErrorKind::source,
         "{}: {} of '{}' is {}, expected a finite number. Correct it, or copy the adapter again.",
         place_, member, module, shown(stated));
  auto const r = static_cast<double>(rank);
  double const scale = *alpha / (by_root_ ? std::sqrt(r) : r);
  if (!(std::abs(scale) <= static_cast<double>(std::numeric_limits<float>::max())))
    fail(ErrorKind::source,
         "{}: {} of '{}' is {}, and divided by rank {} it is not a finite 32-bit number. "
         "Correct it, or copy the adapter again.",
         place_, member, module, shown(stated), rank);
  return static_cast<float>(scale);
}

std::optional<LoraConfig> lora_config(Folder const& folder, LoraUse use) {
  if (folder.adapter.is_null()) return std::nullopt;
  return LoraConfig(folder.adapter, (folder.path / adapter_config_name).string(), use);
}

Json stated_alpha(std::string const& text, Json const& recorded, std::string const& needed) {
  constexpr char const* key = "[model] lora_alpha";
  if (text.empty() && number(&recorded)) return recorded;
  if (text.empty()) fail(ErrorKind::usage, "{}: {}", key, needed);
  double alpha = 0;
  auto const [end, code] = std::from_chars(text.data(), text.data() + text.size(), alpha);
  if (code != std::errc() || end != text.data() + text.size() ||
      !std::isfinite(static_cast<float>(alpha)))
    fail(ErrorKind::usage, "{} = \"{}\": it must be a finite number of 32 bits, such as \"16\".",
         key, text);
  constexpr double whole = 1LL << 53;
  return std::trunc(alpha) == alpha && std::abs(alpha) < whole
             ? Json(static_cast<std::int64_t>(alpha))
             : Json(alpha);
}

}  // namespace reshard::huggingface
