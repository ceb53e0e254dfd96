#include "pipeline/cli/completion.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "pipeline/job/job_field.hpp"

namespace reshard {

std::string completion_script(std::string_view shell, CommandTable const& table) {
  if (shell == "bash") return bash_completion(table);
  return shell == "zsh" ? zsh_completion(table) : fish_completion(table);
}

std::vector<SettingFacts> setting_facts() {
  std::vector<SettingFacts> settings;
  for (job::Field const& field : job::fields()) {
    SettingFacts facts{.key = field.key(),
                       .choices = field.choices,
                       .text = std::string(field.comment),
                       .path = false};
    if (field.kind == job::FieldKind::flag) facts.choices = {"true", "false"};
    std::replace(facts.text.begin(), facts.text.end(), '\n', ' ');
    facts.text = facts.text.substr(0, facts.text.find_first_of(".:;"));
    facts.path = field.name == "path" || field.name == "reference" || field.name == "config";
    settings.push_back(std::move(facts));
  }
  return settings;
}

std::string shell_quoted(std::string_view text) {
  std::string out = "'";
  for (char const c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

std::string_view maps_function() {
  return R"sh(_reshard_maps() {
  local folder file
  for folder in "${RESHARD_MAPS:-}" "$(dirname -- "$(command -v reshard 2>/dev/null)" 2>/dev/null)/../share/reshard/models"; do
    [ -d "$folder" ] || continue
    for file in "$folder"/*.toml; do
      [ -e "$file" ] || continue
      file=${file##*/}
      printf '%s\n' "${file%.toml}"
    done
  done
}
)sh";
}

}  // namespace reshard
