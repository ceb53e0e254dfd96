#include "pipeline/cli/completion.hpp"

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include "pipeline/job/job_field.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view bash_script =
    R"sh(# bash completion of reshard; made by `reshard completion bash`

_reshard() {
  local cur=${COMP_WORDS[COMP_CWORD]} head='' line file
  [[ $cur == '=' ]] && cur=''
  if [[ $cur == *=* ]]; then head=${cur%%=*}= cur=${cur#*=}; fi
  COMPREPLY=()
  while IFS= read -r line; do
    case $line in
      :files*)
        compopt -o filenames 2>/dev/null
        while IFS= read -r file; do
          # shellcheck disable=SC2053
          if [[ -d $file || ${file##*/} == ${line#:files } ]]; then COMPREPLY+=("$head$file"); fi
        done < <(compgen -f -- "$cur")
        ;;
      *)
        [[ $line == *= ]] && compopt -o nospace 2>/dev/null
        COMPREPLY+=("$line")
        ;;
    esac
  done < <("${COMP_WORDS[0]}" __complete bash "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}

complete -F _reshard reshard
)sh";

constexpr std::string_view zsh_script = R"sh(#compdef reshard
# zsh completion of reshard; made by `reshard completion zsh`

_reshard() {
  local line
  local -a rows keys files
  for line in "${(@f)$($words[1] __complete zsh "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    case $line in
      ':files *') files=(_files) ;;
      :files*) files=(_files -g "${line#:files }") ;;
      *=:*) keys+=("$line") ;;
      ?*) rows+=("$line") ;;
    esac
  done
  compset -P '*='
  (( $#keys )) && _describe -t keys 'key of the job file' keys -S ''
  (( $#rows )) && _describe -t words word rows
  (( $#files )) && $files
}

if [ "$funcstack[1]" = _reshard ]; then
  _reshard "$@"
else
  compdef _reshard reshard
fi
)sh";

constexpr std::string_view fish_script =
    R"sh(# fish completion of reshard; made by `reshard completion fish`

function __reshard_complete
    set -l token (commandline -ct)
    for line in (reshard __complete fish (commandline -opc)[2..-1] "$token" 2>/dev/null)
        if string match -q ':files*' -- $line
            set -l head (string match -r '^.*=' -- $token)
            for file in (__fish_complete_path (string replace -r '^.*=' '' -- $token))
                string join '' -- $head $file
            end
        else
            echo $line
        end
    end
end

complete -c reshard -f -a '(__reshard_complete)'
)sh";

struct Candidate {
  std::string word;
  std::string text = {};  ///< what it means; "" for nothing
};

/// The candidates for one word, which begins with `begun`.
class Offer {
 public:
  explicit Offer(std::string_view begun) : begun_(begun) {}

  /// The next candidates are for the part of the word behind `head`.
  void behind(std::string_view head) { head_ = head; }

  void word(std::string const& word, std::string const& text = "") {
    if (std::string whole = head_ + word; whole.starts_with(begun_))
      found_.push_back({std::move(whole), text});
  }
  void files(std::string_view glob) { files_ = glob; }

  /// `dropped`: so many bytes of each word are no part of what the shell completes.
  std::string lines(std::string_view shell, std::size_t dropped) const {
    std::string out;
    for (Candidate const& one : found_) {
      out += one.word.substr(dropped);
      if (shell == "zsh") out += ":" + one.text;
      if (shell == "fish" && !one.text.empty()) out += "\t" + one.text;
      out += "\n";
    }
    return files_.empty() ? out : out + ":files " + files_ + "\n";
  }

 private:
  std::string begun_;
  std::string head_;
  std::vector<Candidate> found_;
  std::string files_;
};

/// Words as they were typed: readline makes three of key=value. `dropped` are the bytes of the last
/// one that the shell does not complete.
struct Typed {
  std::vector<std::string> words;
  std::size_t dropped = 0;
};

Typed typed(std::span<std::string const> words, std::string_view shell) {
  Typed out;
  bool behind = false;  // an '=' that is a word of its own
  for (std::string const& word : words) {
    bool const joined = !out.words.empty() && (behind || (shell == "bash" && word == "="));
    out.dropped = joined && behind ? out.words.back().size() : 0;
    if (joined)
      out.words.back() += word;
    else
      out.words.push_back(word);
    behind = joined && word == "=" && !behind;
    if (behind) out.dropped = out.words.back().size();
  }
  if (out.words.empty()) out.words.emplace_back();
  std::string const& last = out.words.back();
  if (std::size_t const at = last.rfind('='); shell == "zsh" && at != std::string::npos)
    out.dropped = at + 1;
  return out;
}

std::string first_sentence(std::string_view comment) {
  std::string text(comment.substr(0, comment.find_first_of(".:;")));
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

/// The candidates of a command line.
class Completer {
 public:
  Completer(CommandTable const& table, std::span<fs::path const> map_folders,
            std::span<std::string const> words)
      : table_(table), map_folders_(map_folders), words_(words), offer_(words.back()) {}

  Offer take() {
    std::string const& last = words_.back();
    std::size_t const equals = last.find('=');
    if (OptionFacts const* const option = option_before()) {
      offer_value(*option, last);
    } else if (last.starts_with("--") && equals != std::string::npos) {
      offer_.behind(last.substr(0, equals + 1));
      if (auto const* const named = option_named(last.substr(0, equals)))
        offer_value(*named, last.substr(equals + 1));
    } else if (last.starts_with('-')) {
      for (OptionFacts const& one : command().options)
        if (!one.positional())
          for (std::string const& name : one.names) offer_.word(name, one.text);
    } else if (command().name.empty()) {
      for (CommandFacts const& one : table_)
        if (!one.name.empty()) offer_.word(one.name, one.text);
    } else if (OptionFacts const* const positional = next_positional()) {
      offer_value(*positional, last);
    }
    return std::move(offer_);
  }

 private:
  CommandFacts const& command() const {
    static CommandFacts const unknown{.name = "?", .text = {}, .examples = {}, .options = {}};
    auto const before = words_.first(words_.size() - 1);
    auto const name = std::ranges::find_if(
        before, [](std::string const& word) { return !word.starts_with('-'); });
    if (name == before.end()) return table_.front();
    auto const found = std::ranges::find(table_, *name, &CommandFacts::name);
    return found == table_.end() ? unknown : *found;
  }
  OptionFacts const* option_named(std::string_view name) const {
    for (OptionFacts const& option : command().options)
      if (!option.value.empty() && std::ranges::count(option.names, name) > 0) return &option;
    return nullptr;
  }
  /// The option whose value is the last word.
  OptionFacts const* option_before() const {
    return words_.size() < 2 ? nullptr : option_named(words_[words_.size() - 2]);
  }
  /// The positional that the last word stands for.
  OptionFacts const* next_positional() const {
    std::size_t given = 0;
    for (std::size_t w = 0; w + 1 < words_.size(); ++w)
      if (!words_[w].starts_with('-') && (w == 0 || option_named(words_[w - 1]) == nullptr))
        ++given;
    OptionFacts const* last = nullptr;
    for (OptionFacts const& option : command().options) {
      if (!option.positional()) continue;
      last = &option;
      if (--given == 0) break;
    }
    return last;
  }

  /// `begun`: of the value.
  void offer_value(OptionFacts const& option, std::string_view begun) {
    switch (option.kind) {
      case WordKind::choice:
        for (std::string const& choice : option.choices) offer_.word(choice);
        break;
      case WordKind::map:
        for (char const* const word : {"auto", "none"}) offer_.word(word);
        for (std::string const& name : map_names()) offer_.word(name);
        offer_.files("*.toml");
        break;
      case WordKind::setting: offer_setting(begun); break;
      case WordKind::file:
        offer_.files(option.names.front().ends_with(".toml") ? "*.toml" : "*");
        break;
      case WordKind::path: offer_.files("*"); break;
      case WordKind::none:
      case WordKind::text:
      case WordKind::number: break;
    }
  }

  /// A key of the job file, or its value.
  void offer_setting(std::string_view begun) {
    std::size_t const equals = begun.find('=');
    for (job::Field const& field : job::fields()) {
      std::string const head = field.key() + "=";
      if (equals == std::string_view::npos) offer_.word(head, first_sentence(field.comment));
      if (begun.substr(0, equals + 1) != head) continue;
      if (field.key() == "model.map") {
        offer_.word(head + "auto");
        for (std::string const& name : map_names()) offer_.word(head + name);
      }
      for (std::string const& choice : field.choices) offer_.word(head + choice);
      if (field.kind == keys::Kind::flag)
        for (char const* const choice : {"true", "false"}) offer_.word(head + choice);
      if (job::is_path(field.key())) offer_.files("*");
    }
  }

  std::set<std::string> map_names() const {
    std::set<std::string> names;
    std::error_code ignored;
    for (fs::path const& folder : map_folders_)
      for (fs::directory_entry const& entry : fs::directory_iterator(folder, ignored))
        if (entry.path().extension() == ".toml") names.insert(entry.path().stem().string());
    return names;
  }

  CommandTable const& table_;
  std::span<fs::path const> map_folders_;
  std::span<std::string const> words_;
  Offer offer_;
};

}  // namespace

std::vector<std::string> completion_shells() { return {"bash", "zsh", "fish"}; }

std::string completion_script(std::string_view shell) {
  return std::string(shell == "bash" ? bash_script : shell == "zsh" ? zsh_script : fish_script);
}

std::string candidates(std::string_view shell, std::span<std::string const> words,
                       CommandTable const& table, std::span<fs::path const> map_folders) {
  Typed const line = typed(words, shell);
  return Completer(table, map_folders, line.words).take().lines(shell, line.dropped);
}

}  // namespace reshard
