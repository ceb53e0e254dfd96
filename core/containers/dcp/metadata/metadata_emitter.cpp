#include "core/containers/dcp/metadata/metadata_emitter.hpp"

#include <limits>

#include "core/containers/torch/little_endian.hpp"
#include "core/containers/torch/pickle/pickle_emitter.hpp"

namespace reshard::dcp {

void Emitter::protocol() {
  op(Op::proto);
  out_.push_back(4);
}

void Emitter::integer(std::int64_t value) { pickle::append_integer(out_, value); }

void Emitter::plain_string(std::string_view text) {
  if (text.size() < 0x100) {
    op(Op::short_binunicode);
    out_.push_back(static_cast<char>(text.size()));
  } else if (text.size() <= std::numeric_limits<std::uint32_t>::max()) {
    op(Op::binunicode);
    append_little_endian(out_, static_cast<std::uint32_t>(text.size()));
  } else {
    op(Op::binunicode8);
    append_little_endian(out_, std::uint64_t{text.size()});
  }
  out_ += text;
}

void Emitter::string(std::string_view text) {
  if (!compact_) return plain_string(text);
  std::uint32_t const id = strings_.add(text);
  if (id >= numbers_.size()) numbers_.resize(std::size_t{id} + 1, not_stored);
  if (fetch(numbers_[id])) return;
  plain_string(text);
  store(numbers_[id]);
}

void Emitter::global(std::string_view module, std::string_view name) {
  std::uint32_t& number = globals_.try_emplace(name, not_stored).first->second;
  if (fetch(number)) return;
  string(module);
  string(name);
  op(Op::stack_global);
  store(number);
}

void Emitter::new_object(std::string_view module, std::string_view name) {
  global(module, name);
  op(Op::empty_tuple);
  op(Op::newobj);
}

bool Emitter::fetch(std::uint32_t number) {
  if (!compact_ || number == not_stored) return false;
  op(number < short_numbers ? Op::binget : Op::long_binget);
  if (number < short_numbers)
    out_.push_back(static_cast<char>(number));
  else
    append_little_endian(out_, number);
  return true;
}

void Emitter::store(std::uint32_t& number) {
  if (!compact_) return;
  op(Op::memoize);
  number = stored_++;
}

}  // namespace reshard::dcp
