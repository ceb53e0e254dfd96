#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace reshard {

/// The sentence of a command without a job file: keys that its advice names become options, such as
/// "--prefix" for `source.prefix`. `config_option` is the option in place of `source.config`:
/// "--config"; or "--config-a", and then the others are those of the same side, "--prefix-a".
std::string in_option_words(std::string sentence, std::string_view config_option);

/// Makes another sentence of that of an Error.
using Reword = std::function<std::string(std::string)>;

/// Does `work`; the Errors that it throws have the sentences that `reword` makes.
void with_words(Reword const& reword, std::function<void()> const& work);

/// Does `work`; the Errors that it throws have the words of options.
void with_option_words(std::string_view config_option, std::function<void()> const& work);

}  // namespace reshard
