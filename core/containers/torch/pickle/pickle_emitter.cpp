#include "core/containers/torch/pickle/pickle_emitter.hpp"

#include <bit>

#include "core/base/error.hpp"
#include "core/containers/torch/little_endian.hpp"

namespace reshard::pickle {

void append_integer(std::string& out, std::int64_t value) {
  auto const op = [&out](Op code) { out.push_back(static_cast<char>(code)); };
  if (value >= 0 && value < 0x100) {
    op(Op::binint1);
    append_little_endian(out, static_cast<std::uint8_t>(value));
  } else if (value >= 0 && value < 0x10000) {
    op(Op::binint2);
    append_little_endian(out, static_cast<std::uint16_t>(value));
  } else if (value == static_cast<std::int32_t>(value)) {
    op(Op::binint);
    append_little_endian(out, static_cast<std::uint32_t>(value));
  } else {
    std::string bytes;
    append_little_endian(bytes, static_cast<std::uint64_t>(value));
    auto const only_repeats_sign = [&bytes] {
      return bytes.back() == ((bytes[bytes.size() - 2] & 0x80) != 0 ? '\xff' : '\0');
    };
    while (only_repeats_sign()) bytes.pop_back();
    op(Op::long1);
    append_little_endian(out, static_cast<std::uint8_t>(bytes.size()));
    out += bytes;
  }
}

void Emitter::protocol() {
  op(Op::proto);
  byte(2);
}

std::uint32_t Emitter::store() {
  std::uint32_t const number = stored_++;
  op(number < 256 ? Op::binput : Op::long_binput);
  if (number < 256)
    byte(number);
  else
    append_little_endian(out_, number);
  return number;
}

void Emitter::fetch(std::uint32_t number) {
  op(number < 256 ? Op::binget : Op::long_binget);
  if (number < 256)
    byte(number);
  else
    append_little_endian(out_, number);
}

void Emitter::string(std::string_view text) {
  auto const [place, is_new] = strings_.try_emplace(std::string(text), stored_);
  if (!is_new) return fetch(place->second);
  unshared_string(text);
}

void Emitter::unshared_string(std::string_view text) {
  RESHARD_EXPECT(text.size() <= 0xffffffffU);  // files with longer ones are not read
  op(Op::binunicode);
  append_little_endian(out_, static_cast<std::uint32_t>(text.size()));
  out_ += text;
  store();
}

void Emitter::global(std::string_view module, std::string_view name) {
  std::string key = fmt::format("{}\n{}", module, name);
  if (auto const found = globals_.find(key); found != globals_.end()) return fetch(found->second);
  // Protocol 2 cannot resolve "Outer.Inner", only getattr(Outer, 'Inner') can. That call reaches
  // all imports of a module: we never write it.
  if (name.find('.') != std::string_view::npos)
    fail(ErrorKind::source,
         "the name '{}' of module '{}' has a dot, which pickle protocol 2 cannot express. Leave "
         "the value out.",
         name, module);
  op(Op::global);
  out_ += key;
  out_ += '\n';
  globals_.emplace(std::move(key), store());
}

void Emitter::long_integer(std::string_view bytes) {
  if (bytes.size() < 256) {
    op(Op::long1);
    byte(bytes.size());
  } else {
    op(Op::long4);
    append_little_endian(out_, static_cast<std::uint32_t>(bytes.size()));
  }
  out_ += bytes;
}

void Emitter::real(double value) {
  op(Op::binfloat);
  auto const bits = std::bit_cast<std::uint64_t>(value);
  for (int shift = 56; shift >= 0; shift -= 8) byte(bits >> shift);
}

void Emitter::close_tuple_unstored(std::size_t count) {
  constexpr Op small[] = {Op::empty_tuple, Op::tuple1, Op::tuple2, Op::tuple3};
  op(count > 3 ? Op::tuple : small[count]);
}

void Emitter::close_tuple(std::size_t count) {
  close_tuple_unstored(count);
  if (count > 0) store();
}

std::uint32_t Emitter::call() {
  op(Op::reduce);
  return store();
}

}  // namespace reshard::pickle
